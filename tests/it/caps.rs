//! Relays that return or reconcile less at once than is asked for, or something else.

use std::net::Ipv4Addr;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tieline::job_spec::{Direction, Side};
use tieline::outcome::{Ending, Gap};
use tieline::relay::{Relay, RelayOptions, client_config};
use tokio::net::TcpListener;
use tokio_tungstenite::accept_async;
use tokio_tungstenite::tungstenite::Message;

use crate::support::events::{Author, EPOCH, Event, ids};
use crate::support::model::{ModelRelay, Neg, Quirks};
use crate::support::run::{Run, state};

/// What a page holds at most, of the 500 that are asked for.
const CAP: usize = 100;

/// A relay that has to be listed.
fn listed() -> Quirks {
    Quirks { neg: Neg::Err("blocked: negentropy is off".into()), ..Quirks::default() }
}

/// 450 notes, seven a second.
fn notes() -> Vec<Event> {
    let note = |number: u64| Author::new(1).note_saying(EPOCH + number / 7, &number.to_string());
    (0..450).map(note).collect()
}

/// Syncs two sets that overlap, both ways, and once more for nothing.
async fn settle(local: &ModelRelay, peer: &ModelRelay) {
    let notes = notes();
    local.fill(&notes[..400]);
    peer.fill(&notes[50..]);
    let run = Run::both(local.url(), peer.url());
    let report = run.converges().await;
    assert_eq!((report.local_only, report.peer_only), (50, 50), "{report:#?}");
    assert_eq!((report.uploaded.stored, report.downloaded.stored), (50, 50), "{report:#?}");
    assert_eq!(local.ids(&json!({})), ids(&notes));
    assert_eq!(peer.ids(&json!({})), ids(&notes));
    run.is_idle().await;
}

/// With such a relay here, there, and on both sides.
async fn settle_with(quirks: Quirks) {
    let start = |odd: bool| ModelRelay::start(if odd { quirks.clone() } else { Quirks::default() });
    for (local, peer) in [(true, false), (false, true), (true, true)] {
        settle(&start(local).await, &start(peer).await).await;
    }
}

#[tokio::test]
async fn a_short_page_is_not_the_end() {
    settle_with(Quirks { page_cap: Some(CAP), ..listed() }).await;
}

#[tokio::test]
async fn ties_come_in_any_order() {
    settle_with(Quirks { page_cap: Some(CAP), ties_reversed: true, ..listed() }).await;
}

#[tokio::test]
async fn until_may_be_exclusive() {
    settle_with(Quirks { page_cap: Some(CAP), until_exclusive: true, ..listed() }).await;
}

#[tokio::test]
async fn limit_may_be_ignored() {
    settle_with(Quirks { ignores_limit: true, ..listed() }).await;
}

#[tokio::test]
async fn hints_are_heeded() {
    settle_with(Quirks { page_cap: Some(CAP), eose_hints: true, ..listed() }).await;
    // The first page says that it is the last, and is believed.
    let (local, peer) =
        (ModelRelay::start(Quirks::default()).await, ModelRelay::start(Quirks { eose_hints: true, ..listed() }).await);
    local.fill(&notes());
    peer.fill(&notes());
    Run::new(local.url(), peer.url(), &json!({"kinds": [1]}), Direction::Both).is_idle().await;
    assert_eq!(peer.received("REQ"), 1);
}

/// A page of which most has arrived before the first event is read.
#[tokio::test]
async fn a_burst_is_read_to_its_end() {
    let notes = Author::new(1).notes(1000, EPOCH);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap()).parse().unwrap();
    let frames: Vec<_> = notes.iter().map(|note| Message::text(format!(r#"["EVENT","%",{}]"#, note.json))).collect();
    tokio::spawn(async move {
        loop {
            // A question about the relay itself gets no answer.
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut socket) = accept_async(stream).await else { continue };
            let Some(Ok(Message::Text(request))) = socket.next().await else { continue };
            let request: Value = serde_json::from_str(&request).unwrap();
            let name = request[1].as_str().unwrap();
            for frame in &frames {
                let text = frame.to_text().unwrap().replacen('%', name, 1);
                socket.feed(Message::text(text)).await.unwrap();
            }
            socket.send(Message::text(json!(["EOSE", name]).to_string())).await.unwrap();
            let _ = socket.next().await;
        }
    });
    let relay = Relay::spawn(RelayOptions::new(url, client_config(None).unwrap()));
    let listing = relay.link().list("{}".parse().unwrap(), 1000).await.unwrap();
    assert_eq!((listing.received, listing.events.len()), (1000, 1000));
}

/// Fails, and says which relay and why.
#[tokio::test]
async fn a_relay_that_ignores_until_is_no_loop() {
    for on in Side::BOTH {
        let odd = ModelRelay::start(Quirks { page_cap: Some(CAP), ignores_until: true, ..listed() }).await;
        let good = ModelRelay::start(Quirks::default()).await;
        odd.fill(&notes());
        let (local, peer) = if on == Side::Local { (&odd, &good) } else { (&good, &odd) };
        let report = Run::both(local.url(), peer.url()).once().await;
        assert_eq!(report.outcome, Ending::Failed, "{report:#?}");
        let error = report.error.unwrap();
        assert!(error.contains(odd.url()) && error.contains("`until` seems to be ignored"), "{error}");
        assert!(odd.received("REQ") < 50, "{}", odd.received("REQ"));
    }
}

/// The one second that cannot be listed is named; all else is moved.
#[tokio::test]
async fn a_second_denser_than_a_page_is_a_named_gap() {
    let dense = EPOCH + 30;
    for side in Side::BOTH {
        let capped = ModelRelay::start(Quirks { page_cap: Some(CAP), ..listed() }).await;
        let good = ModelRelay::start(Quirks::default()).await;
        let around = Author::new(1).notes(61, EPOCH);
        let crowd = Author::new(2).notes_of_one_second(150, dense);
        capped.fill(&crowd);
        capped.fill(&around[10..]);
        good.fill(&around[..50]);
        let (local, peer) = if side == Side::Local { (&capped, &good) } else { (&good, &capped) };
        let run = Run::both(local.url(), peer.url());
        for _ in 0..2 {
            let report = run.once().await;
            assert_eq!(report.outcome, Ending::Partial, "{report:#?}");
            assert_eq!(report.gaps, [Gap { side, second: dense, cap: CAP }], "{report:#?}");
        }
        for part in [json!({"until": dense - 1}), json!({"since": dense + 1})] {
            assert_eq!(good.ids(&part), capped.ids(&part));
        }
        assert_eq!(capped.ids(&json!({})).len(), 61 + 150);
        assert!(good.ids(&json!({"since": dense, "until": dense})).len() > CAP - 10);
    }
}

/// An event that was stored into a second too dense to list is not found there again, and is
/// served all the same: nobody calls it otherwise, now or later.
#[tokio::test]
async fn what_a_dense_second_hides_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(directory.path()).await;
    let capped = ModelRelay::start(Quirks { page_cap: Some(CAP), ..listed() }).await;
    let good = ModelRelay::start(Quirks::default()).await;
    let crowd = Author::new(3).notes_of_one_second(250, EPOCH);
    good.fill(&crowd);
    let run = Run::both(capped.url(), good.url()).knowing(&state);
    let report = run.once().await;
    assert_eq!((report.outcome, report.downloaded.stored), (Ending::Partial, 250), "{report:#?}");
    assert!(report.downloaded.refused.is_empty(), "{report:#?}");
    assert_eq!(capped.ids(&json!({})), ids(&crowd));
    assert_eq!(state.parked_counts().await.unwrap(), []);
}

/// By kinds, and by authors.
#[tokio::test]
async fn a_dense_second_is_divided_where_the_filter_can_be() {
    let (ann, bob) = (Author::new(1), Author::new(2));
    let two_authors = [ann.notes_of_one_second(80, EPOCH), bob.notes_of_one_second(80, EPOCH)].concat();
    let reaction = |number: usize| ann.event(7, EPOCH, &[], &number.to_string());
    let two_kinds = [ann.notes_of_one_second(80, EPOCH), (0..80).map(reaction).collect()].concat();
    let by_authors = json!({"authors": [ann.pubkey(), bob.pubkey()]});
    for (events, filter) in [(two_authors, by_authors), (two_kinds, json!({"kinds": [1, 7]}))] {
        let capped = || ModelRelay::start(Quirks { page_cap: Some(CAP), ..listed() });
        let (local, peer) = (capped().await, capped().await);
        peer.fill(&events);
        let run = Run::new(local.url(), peer.url(), &filter, Direction::Pull);
        assert_eq!(run.converges().await.downloaded.stored, 160);
        assert_eq!(local.ids(&json!({})), ids(&events));
        run.is_idle().await;
    }
}

/// 1,000 events where a session takes 100, said and unsaid, on either side and on both.
#[tokio::test]
async fn a_session_that_is_too_big_is_split() {
    for says_max in [true, false] {
        for limits in [(Some(CAP), None), (None, Some(CAP)), (Some(CAP), Some(CAP))] {
            split(limits, says_max, &spread(1000)).await;
        }
    }
}

/// One of the seconds is too big for a session, and is listed.
#[tokio::test]
async fn a_second_that_is_too_big_for_a_session_is_listed() {
    let crowd = Author::new(2).notes_of_one_second(150, EPOCH + 5 * 3600);
    split((None, Some(CAP)), true, &[spread(400), crowd.clone()].concat()).await;
    split((Some(CAP), None), false, &[spread(400), crowd].concat()).await;
}

/// Notes half an hour apart.
fn spread(count: u64) -> Vec<Event> {
    (0..count).map(|number| Author::new(1).note(EPOCH + number * 1800)).collect()
}

async fn split((here, there): (Option<usize>, Option<usize>), says_max: bool, events: &[Event]) {
    let start = |neg_max_sync| ModelRelay::start(Quirks { neg_max_sync, neg_says_max: says_max, ..Quirks::default() });
    let (local, peer) = (start(here).await, start(there).await);
    // Each side lacks some of the others.
    let without = |rest: usize| -> Vec<Event> {
        events.iter().enumerate().filter(|(number, _)| number % 40 != rest).map(|(_, event)| event.clone()).collect()
    };
    local.fill(&without(3));
    peer.fill(&without(7));
    let run = Run::both(local.url(), peer.url());
    let report = run.converges().await;
    let all: Value = json!({});
    assert_eq!(local.ids(&all), ids(events), "{report:#?}");
    assert_eq!(peer.ids(&all), ids(events), "{report:#?}");
    let missing = |rest: usize| (0..events.len()).filter(|number| number % 40 == rest).count() as u64;
    assert_eq!((report.local_only, report.peer_only), (missing(7), missing(3)), "{report:#?}");
    let again = run.is_idle().await;
    // What one side has split is small enough for the other.
    let refusals = local.sent("NEG-ERR") + peer.sent("NEG-ERR");
    assert!(refusals > 0, "{again:#?}");
    // A refusal for each halving, and no more.
    assert!(refusals < 800, "{refusals}");
}
