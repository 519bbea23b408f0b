//! AUTH (NIP-42), wherever it may be asked for (PROTOCOL.md, section 5).

use tieline::job_spec::Direction;
use tieline::outcome::Ending;

use super::{Case, all, notes};
use crate::support::events::{Author, EPOCH};
use crate::support::model::{Auth, Quirks};

/// Both ways, with something to move each way.
async fn both(auth: Auth) -> Case {
    let case = Case::new(Quirks { auth, ..Quirks::default() }, Direction::Both).await;
    case.local.fill(&notes(40));
    case.peer.fill(&Author::new(2).notes(40, EPOCH));
    case
}

/// Every place where it may be asked for, alone and together.
fn places() -> [Auth; 5] {
    [
        Auth { for_req: true, ..Auth::default() },
        Auth { for_event: true, ..Auth::default() },
        Auth { for_neg: true, ..Auth::default() },
        Auth { for_neg: true, closes_neg: true, ..Auth::default() },
        Auth::required(),
    ]
}

#[tokio::test]
async fn with_a_key_it_is_answered_once() {
    all(places().into_iter().map(|auth| async move {
        let row = format!("{auth:?}");
        let case = both(auth).await.with_key();
        let report = case.run().await;
        assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("mediated")), "{row}: {report:#?}");
        assert_eq!((report.uploaded.stored, report.downloaded.stored), (40, 40), "{row}");
        assert_eq!(case.peer.received("AUTH"), 1, "{row}");
    }))
    .await;
}

#[tokio::test]
async fn without_a_key_the_job_is_blocked() {
    all(places().into_iter().map(|auth| async move {
        let row = format!("{auth:?}");
        let case = both(auth).await;
        let report = case.run().await;
        assert_eq!(report.outcome, Ending::Blocked, "{row}");
        let error = report.error.unwrap();
        assert!(error.contains("wants authentication") && error.contains("`auth:`"), "{row}: {error}");
        assert_eq!(case.peer.received("AUTH"), 0, "{row}");
        assert_eq!(case.remembered().await, None, "{row}: it may speak NIP-77");
    }))
    .await;
}

/// Every refusal brings a new challenge, which ends the one before: with many events under way,
/// the first answer comes too late for its own.
#[tokio::test]
async fn a_challenge_that_changes_is_answered() {
    all(places().into_iter().map(|auth| async move {
        let row = format!("{auth:?}");
        let case = both(Auth { rotates: true, ..auth }).await.with_key();
        let report = case.run().await;
        assert_eq!(report.outcome, Ending::Converged, "{row}: {report:#?}");
        assert_eq!((report.uploaded.stored, report.downloaded.stored), (40, 40), "{row}");
        assert!(case.peer.received("AUTH") <= 4, "{row}: {} AUTH", case.peer.received("AUTH"));
    }))
    .await;
}

#[tokio::test]
async fn an_answer_that_is_refused_blocks_the_job() {
    for auth in places() {
        for rotates in [false, true] {
            let row = format!("{auth:?} {rotates}");
            let case = both(Auth { never_satisfied: true, rotates, ..auth.clone() }).await.with_key();
            let report = case.run().await;
            assert_eq!((report.outcome, report.passes), (Ending::Blocked, 1), "{row}");
            let error = report.error.unwrap();
            assert!(error.contains("wants authentication") && error.contains("not the answer"), "{row}: {error}");
            assert!(case.peer.received("AUTH") <= 4, "{row}");
        }
    }
}

/// The relay accepts the answer, and goes on asking.
#[tokio::test]
async fn a_second_refusal_blocks_the_job() {
    for auth in places() {
        for rotates in [false, true] {
            let row = format!("{auth:?} {rotates}");
            let case = both(Auth { in_vain: true, rotates, ..auth.clone() }).await.with_key();
            let report = case.run().await;
            assert_eq!((report.outcome, report.passes), (Ending::Blocked, 1), "{row}");
            assert!(report.error.unwrap().contains("wants authentication"), "{row}");
        }
    }
}

#[tokio::test]
async fn a_new_connection_authenticates_anew() {
    let case = both(Auth::required()).await.with_key();
    assert_eq!(case.run().await.outcome, Ending::Converged);
    case.peer.fill(&Author::new(3).notes(1, EPOCH));
    let report = case.run().await;
    assert_eq!((report.outcome, report.downloaded.stored), (Ending::Converged, 1));
    assert_eq!(case.peer.received("AUTH"), 2);
}
