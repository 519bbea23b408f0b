//! The first answer to NEG-OPEN (PROTOCOL.md, section 2).

use std::sync::Arc;

use tieline::outcome::Ending;

use super::{Case, DAY, HOUR, all, notes};
use crate::support::events::{Author, EPOCH, now};
use crate::support::model::{Neg, Quirks};

/// A pull of three notes by a peer that answers NEG-OPEN like this.
async fn pull(neg: Neg) -> Case {
    Case::pull(Quirks { neg, ..Quirks::default() }, 3).await
}

#[tokio::test]
async fn a_window_that_is_too_big_is_split() {
    for neg_says_max in [false, true] {
        let quirks = Quirks { neg_max_sync: Some(10), neg_says_max, ..Quirks::default() };
        let case = Case::pull(quirks, 30).await;
        let report = case.run().await;
        assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("mediated")));
        assert_eq!((report.peer_only, report.downloaded.stored), (30, 30));
        assert_eq!(case.remembered().await, None);
    }
}

#[tokio::test]
async fn a_second_that_is_too_big_is_listed_alone() {
    let case = Case::pull(Quirks { neg_max_sync: Some(10), ..Quirks::default() }, 5).await;
    case.peer.fill(&Author::new(1).notes_of_one_second(25, EPOCH + 100));
    let report = case.run().await;
    assert_eq!(report.outcome, Ending::Converged);
    assert_eq!((report.peer_only, report.downloaded.stored, report.gaps.len()), (30, 30, 0));
}

#[tokio::test]
async fn one_that_finds_everything_too_big_is_listed_in_the_end() {
    let texts = [
        "blocked: too many query results",
        "error: too large",
        "blocked: query is too big",
        "error: max_sync_events exceeded",
        "blocked: query too large (7000 > 500)",
        "closed: no (7000 > 0)",
    ];
    all(texts.into_iter().map(|text| async move {
        let case = pull(Neg::Err(text.into())).await;
        let report = case.run().await;
        assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("inventory")), "{text}");
        assert_eq!(report.downloaded.stored, 3, "{text}");
        // A window of 2^31 seconds takes thirty-one halvings, and a few seconds are tried.
        let opened = case.peer.received("NEG-OPEN");
        assert!(opened < 100, "{text}: {opened} NEG-OPEN");
        assert_eq!(case.remembered().await, None, "{text}");
    }))
    .await;
}

#[tokio::test]
async fn what_is_restricted_is_blocked() {
    for text in ["restricted: members only", "ERROR: restricted: members only"] {
        for neg in [Neg::Err(text.into()), Neg::Closed(text.into())] {
            let case = pull(neg).await;
            let report = case.run().await;
            assert_eq!((report.outcome, report.passes), (Ending::Blocked, 1));
            let error = report.error.unwrap();
            assert!(error.contains("does not serve this filter") && error.contains("members only"), "{error}");
            assert!(error.contains("ask its operator"), "no remedy: {error}");
            assert_eq!((case.peer.received("NEG-OPEN"), case.peer.received("REQ")), (1, 0));
        }
    }
}

#[tokio::test]
async fn no_negentropy_is_remembered_for_a_day() {
    let refusals = [
        "blocked: negentropy is switched off",
        "blocked:",
        "negentropy disabled",
        "error: negentropy disabled",
        "unsupported: no NEG here",
    ];
    let mut answers: Vec<Neg> = refusals.iter().map(|text| Neg::Err((*text).into())).collect();
    answers.extend(refusals.iter().map(|text| Neg::Closed((*text).into())));
    answers.extend(
        [
            "ERROR: bad msg: negentropy disabled",
            "error: NEG-OPEN is not for us",
            "could not parse command",
            "Unrecognized envelope",
            "unknown cmd",
            "Unknown command: NEG-OPEN",
            "unsupported message",
            "unrecognized verb",
            "bad msg",
            "Bad Message",
            "Could Not Parse it",
            "INVALID: x",
        ]
        .map(|text| Neg::Notice(text.into())),
    );
    all(answers.into_iter().map(|neg| async move {
        let row = format!("{neg:?}");
        let case = pull(neg).await;
        let report = case.run().await;
        assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("inventory")), "{row}");
        assert_eq!(report.downloaded.stored, 3, "{row}");
        assert_eq!(case.peer.received("NEG-OPEN"), 1, "{row}");
        let known = case.remembered().await.unwrap_or_else(|| panic!("{row}"));
        assert_eq!(known.verdict, "no", "{row}");
        assert!((now() + DAY - 60..=now() + DAY).contains(&known.until), "{row}");

        case.peer.fill(&Author::new(2).notes(2, EPOCH));
        let next = case.run().await;
        assert_eq!((next.outcome, next.strategy, next.downloaded.stored), (Ending::Converged, Some("inventory"), 2));
        assert_eq!(case.peer.received("NEG-OPEN"), 1, "{row}: asked again within the day");
    }))
    .await;
}

#[tokio::test]
async fn two_relays_without_negentropy_are_both_listed() {
    let case = pull(Neg::Err("blocked: off".into())).await;
    case.local.change(|quirks| quirks.neg = Neg::Notice("unknown cmd".into()));
    let report = case.run().await;
    assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("paged")));
    assert_eq!((report.downloaded.stored, report.negentropy_rounds), (3, 0));
}

#[tokio::test]
async fn what_is_broken_is_opened_once_more_and_then_listed() {
    let texts = ["closed: idle", "error: database is locked", "PROTOCOL-ERROR", "ERROR: PROTOCOL-ERROR", "", "what?"];
    all(texts.iter().flat_map(|text| [Neg::Err((*text).into()), Neg::Closed((*text).into())]).map(|neg| async move {
        let row = format!("{neg:?}");
        let case = pull(neg).await;
        let report = case.run().await;
        assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("inventory")), "{row}");
        assert_eq!(report.downloaded.stored, 3, "{row}");
        assert_eq!(case.peer.received("NEG-OPEN"), 2, "{row}: listed for the rest of the run");
        assert_eq!(case.remembered().await, None, "{row}");
    }))
    .await;
}

#[tokio::test]
async fn a_session_that_ends_is_opened_again_and_goes_on() {
    let quirks = Quirks { neg_session_ends_after: Some(1), neg_frame_limit: 4096, ..Quirks::default() };
    let case = Case::pull(quirks, 400).await;
    let report = case.run().await;
    assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("mediated")));
    assert_eq!(report.downloaded.stored, 400);
    assert!(case.peer.received("NEG-OPEN") > 2, "it never ended");
}

#[tokio::test]
async fn another_version_or_nonsense_is_not_believed() {
    let tampered =
        |bytes: &'static [u8]| Quirks { neg_tamper: Some(Arc::new(|_| bytes.to_vec())), ..Quirks::default() };
    let case = Case::pull(tampered(&[0x62]), 3).await;
    let report = case.run().await;
    assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("inventory")));
    assert_eq!((report.downloaded.stored, case.peer.received("NEG-OPEN")), (3, 1));

    // To a side that is to list all it has, a message without a range is no answer either.
    let nonsense = [&[0x61][..], &[0x61, 0x80], &[0x61, 0, 0, 9], &[], &[0x61, 0, 0, 2, 0xff, 0xff, 0xff, 0x7f]];
    all(nonsense.into_iter().map(|bytes| async move {
        let case = Case::pull(tampered(bytes), 0).await.impatient();
        case.peer.fill(&notes(3));
        let report = case.run().await;
        assert_eq!((report.outcome, report.downloaded.stored), (Ending::Failed, 0), "{bytes:x?}");
    }))
    .await;
}

#[tokio::test]
async fn too_many_sessions_at_once_is_waited_for() {
    let notice = || Neg::Notice("ERROR: too many concurrent NEG requests".into());
    let error = || Neg::Err("rate-limited: too many concurrent sessions".into());
    // Until it has room again.
    all([notice(), error()].into_iter().map(|neg| async move {
        let case = pull(neg).await;
        let opened = async {
            while case.peer.received("NEG-OPEN") == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            case.peer.change(|quirks| quirks.neg = Neg::Answers);
        };
        let (report, ()) = tokio::join!(case.run(), opened);
        assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("mediated")));
        assert_eq!(report.downloaded.stored, 3);
    }))
    .await;
    // For ever: three tries, and then it is listed for this run.
    let case = pull(notice()).await;
    let report = case.run().await;
    assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("inventory")));
    assert_eq!((report.downloaded.stored, case.peer.received("NEG-OPEN")), (3, 4));
    assert_eq!(case.remembered().await, None);
}

#[tokio::test]
async fn silence_is_remembered_at_the_third_time_for_an_hour() {
    let case = pull(Neg::Silence).await;
    for (strikes, verdict) in [(1, "silent"), (2, "silent"), (3, "no")] {
        case.peer.clear_record();
        let report = case.run().await;
        assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("inventory")));
        assert_eq!(case.peer.received("NEG-OPEN"), 1, "waited for once a run");
        let known = case.remembered().await.unwrap();
        assert_eq!((known.strikes, known.verdict.as_str()), (strikes, verdict));
        assert!(known.until <= now() + HOUR);
    }
    case.peer.clear_record();
    assert_eq!(case.run().await.outcome, Ending::Converged);
    assert_eq!(case.peer.received("NEG-OPEN"), 0);
}

#[tokio::test]
async fn an_answer_ends_a_row_of_silences() {
    let case = pull(Neg::Silence).await;
    case.run().await;
    case.run().await;
    case.peer.change(|quirks| quirks.neg = Neg::Answers);
    assert_eq!(case.run().await.strategy, Some("mediated"));
    case.peer.change(|quirks| quirks.neg = Neg::Silence);
    case.run().await;
    assert_eq!(case.remembered().await.unwrap().verdict, "silent", "the first of a new row");
}

#[tokio::test]
async fn a_relay_that_disconnects_on_neg_open_twice_is_listed() {
    let case = pull(Neg::Disconnect).await;
    let report = case.run().await;
    assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("inventory")));
    assert_eq!((report.downloaded.stored, report.passes), (3, 4));
    let known = case.remembered().await.unwrap();
    assert_eq!((known.verdict.as_str(), case.peer.received("NEG-OPEN")), ("no", 2));
    assert!(known.until > now() + DAY - 60);
}

#[tokio::test]
async fn a_connection_lost_on_neg_open_once_proves_nothing() {
    let case = pull(Neg::Answers).await;
    case.peer.change(|quirks| quirks.neg = Neg::Disconnect);
    let mended = async {
        while case.peer.received("NEG-OPEN") == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        case.peer.change(|quirks| quirks.neg = Neg::Answers);
    };
    let (report, ()) = tokio::join!(case.run(), mended);
    assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("mediated")));
    assert_eq!(report.downloaded.stored, 3);
}
