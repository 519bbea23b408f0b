//! Peers that are down, go away, flap or fall silent.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Peer, SOON, config, equal, eventually, job, job_becomes, notes, relay, start, stop};
use crate::support::model::{ModelRelay, Quirks};
use crate::support::proxy::{Fault, Proxy};

/// An interval that the test does not live to see again: what happens is the retry's doing.
const RARELY: &str = "interval_seconds: 300";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_down_at_start_is_synced_when_it_comes() {
    let all = notes(1, 9);
    let (local, peer) = (relay(&all[..6]).await, relay(&all[3..]).await);
    peer.stop();
    let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), RARELY)]));
    // First runs are spread over half a minute.
    let row = job_becomes(&cli, "p", Duration::from_secs(60), |row| row["failures"].as_u64() > Some(0)).await;
    assert!(row["last_error"].as_str().unwrap().contains("cannot be reached"), "{row:#?}");
    let row = job_becomes(&cli, "p", SOON, |row| row["state"] == "backing-off").await;
    assert!(row["next_run"].is_u64(), "{row:#?}");
    peer.start_again().await;
    let took = eventually(&cli, "the peer is synced", SOON, || equal(&local, &peer, 9)).await;
    println!("synced {took:?} after it came");
    job_becomes(&cli, "p", SOON, |row| row["state"] == "converged" && row["failures"] == 0).await;
    stop(&cli, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_killed_is_synced_when_it_comes_again() {
    let all = notes(1, 12);
    let (local, peer) = (relay(&all[..4]).await, relay(&all[4..6]).await);
    let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), "")]));
    eventually(&cli, "the first run", SOON, || equal(&local, &peer, 6)).await;
    for round in 0..2 {
        peer.stop();
        let at = 6 + 3 * round;
        local.fill(&all[at..=at]);
        peer.fill(&all[at + 1..at + 3]);
        job_becomes(&cli, "p", SOON, |row| row["failures"].as_u64() > Some(0)).await;
        peer.start_again().await;
        eventually(&cli, "after the restart", SOON, || equal(&local, &peer, at + 3)).await;
    }
    stop(&cli, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_relay_may_be_killed_as_well() {
    let all = notes(1, 9);
    let (local, peer) = (relay(&all[..4]).await, relay(&all[4..6]).await);
    let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), "")]));
    eventually(&cli, "the first run", SOON, || equal(&local, &peer, 6)).await;
    local.stop();
    peer.fill(&all[6..]);
    job_becomes(&cli, "p", SOON, |row| row["failures"].as_u64() > Some(0)).await;
    local.start_again().await;
    eventually(&cli, "after the restart", SOON, || equal(&local, &peer, 9)).await;
    stop(&cli, running).await;
}

/// Connections that last 0.3 s or less, while events appear on both sides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flapping_peer_is_synced_when_it_is_steady() {
    let all = notes(1, 400);
    let (local, peer) = (relay(&all[..100]).await, relay(&all[100..200]).await);
    let proxy = Proxy::start(peer.url()).await;
    let (cli, running) = start(&config(local.url(), &[Peer("p", proxy.url(), "interval_seconds: 1, live: true")]));
    for (round, some) in all[200..].chunks(20).enumerate() {
        if round % 2 == 0 {
            local.fill(some)
        } else {
            peer.fill(some)
        }
        if round % 3 == 0 {
            proxy.set_fault(Fault::CutOnce(5 + round));
        } else {
            peer.disconnect();
        }
        sleep(Duration::from_millis(300)).await;
    }
    proxy.set_fault(Fault::None);
    eventually(&cli, "both are equal", SOON * 2, || equal(&local, &peer, 400)).await;
    stop(&cli, running).await;
}

/// Nothing comes and nothing is closed, neither where jobs talk nor where streams do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_is_given_up() {
    let all = notes(1, 12);
    let (local, peer) = (relay(&all[..6]).await, relay(&all[3..9]).await);
    let proxy = Proxy::start(peer.url()).await;
    let (cli, running) = start(&config(local.url(), &[Peer("p", proxy.url(), "interval_seconds: 1, live: true")]));
    eventually(&cli, "the first run", SOON, || equal(&local, &peer, 9)).await;
    job_becomes(&cli, "p", SOON, |row| row["state"] == "converged").await;
    proxy.set_fault(Fault::Stall(0));
    local.fill(&all[9..10]);
    peer.fill(&all[10..]);
    eventually(&cli, "all is silent", SOON, || proxy.stalled() >= 3).await;
    // New connections are good; the silent ones stay as they are.
    proxy.set_fault(Fault::None);
    // A ping after 30 s of silence, and as long again for its answer.
    let took = eventually(&cli, "both are equal", Duration::from_secs(100), || equal(&local, &peer, 12)).await;
    println!("equal {took:?} after the stall");
    stop(&cli, running).await;
}

/// Three jobs hang at each of six peers, and another is down: the last one does not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_peers_trouble_does_not_delay_another() {
    let all = notes(1, 8);
    let (local, good) = (relay(&all[..1]).await, relay(&[]).await);
    let mut yaml = config(local.url(), &[Peer("good", good.url(), ""), Peer("down", "ws://127.0.0.1:1", "")]);
    let mut slow = Vec::new();
    for n in 0..6 {
        let relay = ModelRelay::start(Quirks { delay: Duration::from_secs(600), ..Quirks::default() }).await;
        let filters = "{name: a, filter: {kinds: [1], '#t': [a]}}, {name: b, filter: {kinds: [1], '#t': [b]}}";
        yaml += &format!("- {{name: s{n}, url: '{}', interval_seconds: 1, filters: [{filters}]}}\n", relay.url());
        slow.push(relay);
    }
    let (cli, running) = start(&yaml);
    eventually(&cli, "the slow ones are asked", SOON, || {
        slow.iter().filter(|slow| slow.received("NEG-OPEN") > 0).count() >= 4
    })
    .await;
    for (index, note) in all.iter().enumerate().skip(1) {
        let published = Instant::now();
        good.fill(std::slice::from_ref(note));
        // One interval, its jitter, the tick of the daemon, and the run itself.
        eventually(&cli, "the good one goes on", Duration::from_secs(8), || equal(&local, &good, index + 1)).await;
        println!("note {index} after {:?}", published.elapsed());
    }
    job_becomes(&cli, "down", SOON, |row| row["failures"].as_u64() > Some(0)).await;
    assert!(job(&cli, "good").await.unwrap()["failures"].as_u64() == Some(0));
    stop(&cli, running).await;
}

/// A relay that hangs behind a proxy: pings are answered, and nothing else is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_answers_pings_alone_is_given_up() {
    let all = notes(1, 9);
    let (local, peer) = (relay(&all[..6]).await, relay(&all[3..]).await);
    let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), "")]));
    eventually(&cli, "the first run", SOON, || equal(&local, &peer, 9)).await;
    peer.change(|quirks| quirks.mutes = true);
    local.fill(&notes(2, 1));
    let asked = peer.received("NEG-OPEN");
    eventually(&cli, "it is asked in vain", SOON, || peer.received("NEG-OPEN") > asked).await;
    // Connections made from now on are good.
    sleep(Duration::from_secs(1)).await;
    peer.change(|quirks| quirks.mutes = false);
    let took = eventually(&cli, "both are equal", Duration::from_secs(100), || equal(&local, &peer, 10)).await;
    println!("equal {took:?} after it fell silent");
    stop(&cli, running).await;
}
