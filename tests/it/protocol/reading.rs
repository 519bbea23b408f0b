//! What may come in answer to a REQ (PROTOCOL.md, sections 1 and 3).

use std::net::Ipv4Addr;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tieline::job_spec::Direction;
use tieline::outcome::{Ending, Report};
use tokio::net::TcpListener;
use tokio::time::{Instant, interval};
use tokio_tungstenite::accept_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Case, all, not_stored, notes};
use crate::support::events::{Author, EPOCH, Event};
use crate::support::model::{Neg, Quirks};

/// A relay without negentropy, which is listed.
fn listed() -> Quirks {
    Quirks { neg: Neg::Err("blocked: off".into()), ..Quirks::default() }
}

/// The job ends on what the relay did, having moved nothing.
async fn fails(quirks: Quirks, ending: Ending, word: &str) -> Report {
    let mut case = Case::pull(quirks, 3).await.impatient();
    // A second pass would fail as the first one.
    case.limits.passes = 1;
    let report = case.run().await;
    assert_eq!((report.outcome, report.downloaded.stored), (ending, 0), "{report:#?}");
    let error = report.error.clone().unwrap();
    assert!(error.contains(word), "{error}");
    report
}

#[tokio::test]
async fn a_notice_in_place_of_an_answer_has_a_deadline() {
    // The second one asks to slow down: the question is put three times more.
    let texts = ["I do not like this", "ERROR: bad req: too many filters for us"];
    let quirks = texts.iter().flat_map(|text| {
        [listed(), Quirks::default()].map(|quirks| Quirks { req_notice: Some((*text).into()), ..quirks })
    });
    all(quirks.map(|quirks| async { drop(fails(quirks, Ending::Failed, "no progress").await) })).await;
}

#[tokio::test]
async fn a_missing_eose_has_a_deadline() {
    for quirks in [listed(), Quirks::default()] {
        fails(Quirks { never_eose: true, ..quirks }, Ending::Failed, "no progress within 0.3 s").await;
    }
}

#[tokio::test]
async fn closed_in_the_middle_ends_the_pass() {
    let rows = [
        ("error: shutting down", Ending::Failed),
        ("", Ending::Failed),
        ("rate-limited: slow down", Ending::Failed),
        ("blocked: not for you", Ending::Blocked),
        ("restricted: members only", Ending::Blocked),
        ("invalid: filter", Ending::Blocked),
    ];
    let cases = rows.iter().flat_map(|(text, ending)| {
        [listed(), Quirks::default()].map(|quirks| async move {
            let quirks = Quirks { closed_after: Some((2, (*text).into())), ..quirks };
            let report = fails(quirks, *ending, "closed the subscription").await;
            assert!(report.error.unwrap().contains(text), "{text}");
        })
    });
    all(cases).await;
}

#[tokio::test]
async fn closed_after_the_end_is_no_error() {
    for quirks in [listed(), Quirks::default()] {
        let case = Case::pull(Quirks { closes_after_eose: true, ..quirks }, 3).await;
        let report = case.run().await;
        assert_eq!((report.outcome, report.downloaded.stored), (Ending::Converged, 3));
    }
}

#[tokio::test]
async fn hints_chatter_and_odd_order_change_nothing() {
    let chatter = vec!["welcome".to_owned(), "we rate your limit highly".into(), "invalid".into()];
    let quirks = Quirks { eose_hints: true, ties_reversed: true, page_cap: Some(100), ..listed() };
    let case = Case::pull(quirks, 3).await;
    case.peer.fill(&Author::new(2).notes_of_one_second(90, EPOCH + 50));
    case.peer.fill(&Author::new(2).notes(300, EPOCH + 100));
    let report = case.run().await;
    assert_eq!((report.outcome, report.downloaded.stored, report.gaps.len()), (Ending::Converged, 393, 0));

    // A NOTICE is not about a NEG-OPEN that is not there, nor about a REQ that is answered.
    let quirks = Quirks { chatter: chatter[..1].to_vec(), ..Quirks::default() };
    let case = Case::pull(quirks, 3).await;
    let report = case.run().await;
    assert_eq!((report.outcome, report.strategy), (Ending::Converged, Some("mediated")));
    let case = Case::pull(Quirks { chatter, ..listed() }, 3).await;
    let report = case.run().await;
    assert_eq!((report.outcome, report.downloaded.stored), (Ending::Converged, 3));
}

#[tokio::test]
async fn a_relay_that_counts_its_subscriptions_is_not_asked_too_much() {
    let quirks = Quirks { max_subscriptions: Some(2), ..Quirks::default() };
    let case = Case::pull(quirks, 600).await;
    let report = case.run().await;
    assert_eq!((report.outcome, report.downloaded.stored), (Ending::Converged, 600));
}

#[tokio::test]
async fn a_flood_is_not_drunk() {
    let mut case = Case::pull(Quirks { injected: vec![unrelated(); 20_001], ..listed() }, 3).await;
    case.limits.passes = 1;
    let report = case.run().await;
    assert_eq!((report.outcome, report.bodies_received), (Ending::Failed, 0));
    assert!(report.error.unwrap().contains("far more events than were asked for"));
}

fn unrelated() -> Event {
    Author::new(9).event(7, EPOCH + 1, &[], "+")
}

#[tokio::test]
async fn what_was_not_asked_for_goes_nowhere() {
    let injected = vec![unrelated(), Author::new(9).event(30_023, EPOCH, &[&["d", "x"]], "an article")];
    let case = Case::pull(Quirks { injected: injected.clone(), ..Quirks::default() }, 3).await;
    let report = case.run().await;
    assert_eq!((report.outcome, report.peer_only, report.downloaded.stored), (Ending::Converged, 3, 3));
    assert_eq!(not_stored(&report.downloaded), "");
    assert_eq!(case.local.offered().len(), 3);

    // A listing in which every page holds something never comes to an empty one.
    let quirks = Quirks { injected: injected.clone(), ..listed() };
    fails(quirks, Ending::Failed, "the listing does not go on").await;
}

/// An event that does match the filter, but is not among the ids that were asked for, is moved
/// only if it is found missing.
#[tokio::test]
async fn what_is_not_in_the_batch_goes_nowhere() {
    let known = notes(1).remove(0);
    let case = Case::pull(Quirks { injected: vec![known.clone()], ..Quirks::default() }, 3).await;
    let report = case.run().await;
    assert_eq!((report.outcome, report.downloaded.stored, report.bodies_received), (Ending::Converged, 3, 3));
    assert!(!case.local.offered().contains(&known.id));
}

/// Whatever a relay calls an event, it does not reach the other one, in either direction.
#[tokio::test]
async fn forgeries_are_never_passed_on() {
    let author = Author::new(3);
    let forged = [
        author.note_saying(EPOCH, "id").with_forged_id(),
        author.note_saying(EPOCH + 1, "signature").with_forged_signature(),
        author.note_saying(EPOCH + 2, "content").with_forged_content(),
    ];
    for direction in [Direction::Pull, Direction::Push, Direction::Both] {
        let case = Case::new(Quirks::default(), direction).await;
        let (source, destination) = match direction {
            Direction::Push => (&case.local, &case.peer),
            _ => (&case.peer, &case.local),
        };
        source.fill(&notes(3));
        source.fill(&forged);
        let report = case.run().await;
        assert_eq!((report.outcome, report.peer_only + report.local_only), (Ending::Converged, 6));
        let moved = if direction == Direction::Push { &report.uploaded } else { &report.downloaded };
        assert_eq!((moved.stored, not_stored(moved).as_str()), (3, "3 skipped:invalid"));
        assert_eq!(destination.offered().len(), 3);
        assert!(forged.iter().all(|event| !destination.offered().contains(&event.id)));

        // They are remembered, and not even fetched again.
        source.clear_record();
        let next = case.run().await;
        assert_eq!((next.outcome, next.passes, next.parked, next.bodies_received), (Ending::Converged, 1, 3, 0));
        assert!(forged.iter().all(|event| !source.served().contains(&event.id)));
    }
}

#[tokio::test]
async fn forgeries_of_a_relay_that_is_listed_are_never_passed_on() {
    let author = Author::new(3);
    let mut case = Case::pull(listed(), 3).await;
    case.nameless = 2;
    case.peer.fill(&[
        author.note_saying(EPOCH, "id").with_forged_id(),
        author.note_saying(EPOCH + 1, "signature").with_forged_signature(),
        author.note_saying(EPOCH + 2, "content").with_forged_content(),
    ]);
    let report = case.run().await;
    assert_eq!((report.outcome, report.downloaded.stored), (Ending::Converged, 3));
    // The other two are under no id that anybody could ask for.
    assert_eq!(not_stored(&report.downloaded), "1 skipped:invalid");
    assert_eq!(case.local.offered().len(), 3);
}

#[tokio::test]
async fn an_id_that_is_listed_and_never_served_has_vanished() {
    let case = Case::pull(Quirks::default(), 3).await;
    let lost = notes(6).pop().unwrap().id;
    case.peer.change(|quirks| {
        quirks.unserved.insert(lost.clone());
    });
    let report = case.run().await;
    assert_eq!((report.outcome, report.downloaded.stored), (Ending::Converged, 2));
    assert_eq!(not_stored(&report.downloaded), "1 vanished");
    assert_eq!(case.parked(&lost).await, Some(("vanished".to_owned(), super::DAY)));
    let asked = |case: &Case| {
        case.peer
            .frames()
            .iter()
            .filter(|frame| frame.verb == "REQ" && frame.text.contains("\"ids\"") && frame.text.contains(&lost))
            .count()
    };
    assert_eq!(asked(&case), 2, "once, and once more");
    case.peer.clear_record();
    assert_eq!((case.run().await.parked, asked(&case)), (1, 0));
}

/// A relay that answers no REQ, and says this all the time in place of it.
struct Nagger {
    url: String,
    _stop: DropGuard,
}

impl Nagger {
    async fn start(nag: fn(&Value) -> Value) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let accept = async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    // It has no NIP-11.
                    let Ok(mut socket) = accept_async(stream).await else { return };
                    let (mut ticks, mut asked) = (interval(Duration::from_millis(20)), Value::Null);
                    loop {
                        let sent = tokio::select! {
                            Some(Ok(message)) = socket.next() => {
                                let message: Value = serde_json::from_str(message.to_text().unwrap()).unwrap_or_default();
                                match message[0].as_str() {
                                    Some("REQ") => { asked = message; Ok(()) }
                                    Some("NEG-OPEN") => {
                                        socket.send(Message::text(json!(["NEG-ERR", message[1], "blocked: off"]).to_string())).await
                                    }
                                    _ => Ok(()),
                                }
                            }
                            _ = ticks.tick() => socket.send(Message::text(nag(&asked).to_string())).await,
                        };
                        if sent.is_err() {
                            return;
                        }
                    }
                });
            }
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(accept));
        Self { url, _stop: stop.drop_guard() }
    }
}

/// A deadline is moved only by what was asked for.
#[tokio::test]
async fn chatter_is_no_progress() {
    let unwanted =
        |asked: &Value| json!(["EVENT", asked[1], serde_json::from_str::<Value>(&unrelated().json).unwrap()]);
    let nags: [fn(&Value) -> Value; 5] = [
        |_| json!(["NOTICE", "please hold the line"]),
        |_| json!(["AUTH", "who are you?"]),
        |_| json!(["OK", "ab".repeat(32), true, ""]),
        |_| json!(["EOSE", "somebody else's"]),
        unwanted,
    ];
    let waits = nags.into_iter().map(|nag| async move {
        let nagger = Nagger::start(nag).await;
        let mut case = Case::pull(Quirks::default(), 3).await.impatient();
        case.at = Some(nagger.url.clone());
        let started = Instant::now();
        let report = case.run().await;
        assert_eq!((report.outcome, report.downloaded.stored), (Ending::Failed, 0));
        assert!(report.error.unwrap().contains("no progress within 0.3 s"));
        // Two passes of 0.3 s, and a short pause between them.
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    });
    all(waits).await;
}
