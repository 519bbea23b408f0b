//! Events that are passed on as they appear.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::{Peer, SOON, config, equal, eventually, job_becomes, notes, relay, start, stop};
use crate::support::client::{Client, fill};
use crate::support::events::{Author, EPOCH, Event, ids, now};
use crate::support::model::{ModelRelay, Quirks, Verdict};

/// Runs only when a stream asks for one.
const LIVE: &str = "schedule: manual, live: true";

/// The subscriptions that a relay has answered and not been told to close: those of streams.
fn streams(relay: &ModelRelay) -> usize {
    let names = |verb: &str| -> BTreeSet<(usize, String)> {
        let frames = relay.frames().into_iter().filter(|frame| frame.verb == verb);
        frames
            .map(|frame| (frame.connection, serde_json::from_str::<Value>(&frame.text).unwrap()[1].to_string()))
            .collect()
    };
    names("EOSE").difference(&names("CLOSE")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_appears_on_the_other_side_and_does_not_come_back() {
    let (local, peer) = (relay(&notes(1, 5)).await, relay(&notes(2, 5)).await);
    let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), LIVE)]));
    eventually(&cli, "history", SOON, || equal(&local, &peer, 10)).await;
    let first = job_becomes(&cli, "p", SOON, |row| row["state"] == "converged").await["last_attempt"].clone();
    local.clear_record();
    peer.clear_record();
    let mut count = 10;
    for (from, author) in [(&local, 3), (&peer, 4)] {
        // Old ones too: what counts is when they come.
        for note in [Author::new(author).note(now()), Author::new(author).note(EPOCH)] {
            fill(from.url(), &[note]).await;
            count += 1;
            eventually(&cli, "it is passed on", SOON, || equal(&local, &peer, count)).await;
        }
    }
    sleep(Duration::from_secs(1)).await;
    let own = |author: u8| ids(&[Author::new(author).note(EPOCH)]);
    for (relay, foreign, theirs) in [(&local, 3, 4), (&peer, 4, 3)] {
        let offered = relay.offered();
        // The test itself publishes two of its own; the daemon brings the other two.
        assert_eq!(offered.len(), 4, "echoes: {offered:?}");
        assert!(own(foreign).iter().chain(&own(theirs)).all(|id| offered.contains(id)));
    }
    let last = job_becomes(&cli, "p", SOON, |_| true).await["last_attempt"].clone();
    assert_eq!(first, last, "no job ran for them");
    stop(&cli, running).await;
}

/// What a job moves is heard by the stream of the relay that it was moved to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_job_moves_is_not_sent_back() {
    let (ours, theirs) = (notes(1, 300), notes(2, 300));
    let (local, peer) = (relay(&ours).await, relay(&theirs).await);
    let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), LIVE)]));
    eventually(&cli, "history", SOON, || equal(&local, &peer, 600)).await;
    job_becomes(&cli, "p", SOON, |row| row["state"] == "converged").await;
    sleep(Duration::from_secs(1)).await;
    for (relay, own) in [(&local, &ours), (&peer, &theirs)] {
        let offered: BTreeSet<String> = relay.offered().into_iter().collect();
        let echoes = ids(own).intersection(&offered).count();
        assert_eq!(echoes, 0, "of {} events", own.len());
    }
    stop(&cli, running).await;
}

/// 200 events a second for eight seconds, half on either side.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_delay_is_short_under_load() {
    const RATE: u64 = 200;
    const COUNT: usize = 1600;
    let (local, peer) = (relay(&[]).await, relay(&[]).await);
    let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), LIVE)]));
    eventually(&cli, "the streams are there", SOON, || streams(&local) > 0 && streams(&peer) > 0).await;
    job_becomes(&cli, "p", SOON, |row| row["state"] == "converged").await;

    let all = notes(1, COUNT);
    let (ours, theirs): (Vec<_>, Vec<_>) = all.iter().cloned().enumerate().partition(|(index, _)| index % 2 == 0);
    let hear = |url: String, count: usize| async move {
        let mut client = Client::connect(&url).await;
        client.send(&json!(["REQ", "live", {"limit": 0}])).await;
        let mut heard = HashMap::new();
        while heard.len() < count {
            let message = client.receive().await.unwrap();
            if message[0] == "EVENT" {
                heard.entry(message[2]["id"].as_str().unwrap().to_owned()).or_insert_with(Instant::now);
            }
        }
        heard
    };
    let hearing = [&local, &peer].map(|relay| tokio::spawn(hear(relay.url().to_owned(), COUNT)));
    sleep(Duration::from_millis(300)).await;
    let publish = |url: String, events: Vec<(usize, Event)>| async move {
        let mut client = Client::connect(&url).await;
        let mut ticks = interval(Duration::from_micros(2_000_000 / RATE));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut sent = HashMap::new();
        for (_, event) in events {
            ticks.tick().await;
            sent.insert(event.id.clone(), Instant::now());
            assert!(client.publish(&event).await.0);
        }
        sent
    };
    let publishing =
        [(&local, ours), (&peer, theirs)].map(|(relay, events)| tokio::spawn(publish(relay.url().to_owned(), events)));
    let started = Instant::now();
    let [ours, theirs] = publishing;
    let (ours, theirs) = (ours.await.unwrap(), theirs.await.unwrap());
    let took = started.elapsed();
    let [at_local, at_peer] = hearing;
    let (at_local, at_peer) = (at_local.await.unwrap(), at_peer.await.unwrap());
    let delays =
        ours.iter().map(|(id, sent)| at_peer[id] - *sent).chain(theirs.iter().map(|(id, sent)| at_local[id] - *sent));
    let mut delays: Vec<Duration> = delays.collect();
    delays.sort();
    let at = |part: usize| delays[(delays.len() - 1) * part / 1000];
    println!(
        "live delay: {} events in {took:?}, p50 {:?}, p90 {:?}, p99 {:?}, most {:?}",
        delays.len(),
        at(500),
        at(900),
        at(990),
        at(1000)
    );
    assert!(at(990) < Duration::from_millis(250), "p99 {:?}:\n{}", at(990), cli.log());
    assert!(equal(&local, &peer, COUNT));
    // Each was published by the test at one relay, and by the daemon at the other.
    assert_eq!((local.offered().len(), peer.offered().len()), (COUNT, COUNT), "echoes");
    stop(&cli, running).await;
}

/// Events of now and of long ago, on both sides, while connections end again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_published_while_disconnected_is_missing_after() {
    let (local, peer) = (relay(&notes(1, 1)).await, relay(&notes(2, 1)).await);
    let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), LIVE)]));
    eventually(&cli, "history", SOON, || equal(&local, &peer, 2)).await;
    let mut count = 2;
    for round in 0..3_u8 {
        peer.stop();
        peer.fill(&[Author::new(10 + round).note(EPOCH), Author::new(10 + round).note(now())]);
        local.fill(&[Author::new(20 + round).note(EPOCH), Author::new(20 + round).note(now())]);
        count += 4;
        sleep(Duration::from_millis(1500)).await;
        peer.start_again().await;
        let took = eventually(&cli, "the gap is closed", SOON * 2, || equal(&local, &peer, count)).await;
        println!("closed {took:?} after it came");
    }
    // Cut off in the middle of a burst.
    let burst = notes(3, 300);
    for (index, some) in burst.chunks(30).enumerate() {
        local.fill(&some[..15]);
        peer.fill(&some[15..]);
        if index % 3 == 1 {
            peer.disconnect()
        }
        if index % 3 == 2 {
            local.disconnect()
        }
        sleep(Duration::from_millis(50)).await;
    }
    eventually(&cli, "after the burst", SOON * 3, || equal(&local, &peer, count + 300)).await;
    stop(&cli, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_event_does_not_loop() {
    let reasons = ["blocked: not here", "invalid: I say so", "error: try later", "no reason at all", "pow: 20 bits"];
    let refusals = reasons.map(|reason| async move {
        let local = relay(&[]).await;
        let peer = ModelRelay::start(Quirks::default().on_event(move |event| {
            if event.content == "refuse me" { Verdict::Refuse(reason.to_owned()) } else { Verdict::Usual }
        }))
        .await;
        let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), LIVE)]));
        eventually(&cli, "the streams are there", SOON, || streams(&local) > 0 && streams(&peer) > 0).await;
        job_becomes(&cli, "p", SOON, |row| row["state"] == "converged").await;
        local.fill(&[Author::new(1).note_saying(now(), "refuse me"), Author::new(1).note(now())]);
        eventually(&cli, "the good one is passed on", SOON, || peer.ids(&json!({})).len() == 1).await;
        sleep(Duration::from_secs(4)).await;
        // Once by the stream; a passing fault is then tried by a job, pass after pass, and by one
        // more if it was refused while the first ran; the good one is offered as well.
        let offered = peer.offered().len();
        assert!(offered <= 12, "{reason}: offered {offered} times:\n{}", cli.log());
        sleep(Duration::from_secs(3)).await;
        assert_eq!(peer.offered().len(), offered, "{reason}: it goes on:\n{}", cli.log());
        stop(&cli, running).await;
    });
    futures::future::join_all(refusals).await;
}

/// What appears here while the peer is away is no reason to knock at its door each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_away_is_not_dialled_for_every_event() {
    let local = relay(&[]).await;
    let peer = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", peer.local_addr().unwrap());
    let dialled = Arc::new(AtomicUsize::new(0));
    tokio::spawn({
        let dialled = dialled.clone();
        async move {
            while peer.accept().await.is_ok() {
                dialled.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    for direction in ["push", "both"] {
        let more = format!("direction: {direction}, {LIVE}");
        let (cli, running) = start(&config(local.url(), &[Peer("p", &url, &more)]));
        job_becomes(&cli, "p", SOON, |row| row["failures"].as_u64() > Some(0)).await;
        dialled.store(0, Ordering::Relaxed);
        for note in notes(if direction == "push" { 1 } else { 2 }, 100) {
            local.fill(&[note]);
            sleep(Duration::from_millis(30)).await;
        }
        let count = dialled.load(Ordering::Relaxed);
        println!("{direction}: dialled {count} times in 3 s");
        // NIP-11 and WebSocket, for runs and for streams, each with its pauses.
        assert!(count <= 30, "{direction}: {count} times:\n{}", cli.log());
        stop(&cli, running).await;
    }
}
