//! SIGHUP and SIGTERM.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{Peer, SOON, config, equal, eventually, job, notes, relay, start, stop};
use crate::support::model::{ModelRelay, Quirks};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_adds_and_removes_jobs_and_disturbs_no_other() {
    let all = notes(1, 12);
    let local = relay(&all[..3]).await;
    let (stays, goes, comes) = (relay(&[]).await, relay(&[]).await, relay(&[]).await);
    let live = "interval_seconds: 1, live: true";
    let before = [Peer("stays", stays.url(), live), Peer("goes", goes.url(), live)];
    let (cli, running) = start(&config(local.url(), &before));
    eventually(&cli, "both peers", SOON, || equal(&local, &stays, 3) && equal(&local, &goes, 3)).await;
    let connections = || stays.frames().iter().map(|frame| frame.connection).max();
    let connected = connections();

    let after = [Peer("stays", stays.url(), live), Peer("comes", comes.url(), live)];
    cli.rewrite_config(&config(local.url(), &after));
    running.signal("HUP").await;
    eventually(&cli, "the new peer", SOON, || equal(&local, &comes, 3)).await;
    local.fill(&all[3..6]);
    eventually(&cli, "what is new", SOON, || equal(&local, &comes, 6) && equal(&local, &stays, 6)).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(goes.ids(&json!({})).len(), 3, "it is no peer any more:\n{}", cli.log());
    let asked = goes.frames().len();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(goes.frames().len(), asked, "it is left alone");
    assert_eq!(connections(), connected, "the one that stays keeps its connections");

    for bad in ["peers: [", "local: {ulr: 'ws://127.0.0.1:1'}\n", ""] {
        let logged = cli.log().len();
        cli.rewrite_config(bad);
        running.signal("HUP").await;
        eventually(&cli, "the log says why", SOON, || cli.log()[logged..].contains("the old one stays in force")).await;
        let said = cli.log()[logged..].to_owned();
        assert!(said.contains("peers.yaml"), "{bad:?}: {said}");
    }
    local.fill(&all[6..9]);
    eventually(&cli, "the old config works", SOON, || equal(&local, &comes, 9) && equal(&local, &stays, 9)).await;

    // And back again.
    cli.rewrite_config(&config(local.url(), &before));
    running.signal("HUP").await;
    eventually(&cli, "the old peer", SOON, || equal(&local, &goes, 9)).await;
    stop(&cli, running).await;
}

/// A key file that cannot be used is as bad as a bad file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_config_that_cannot_be_taken_over_leaves_the_old_one() {
    let all = notes(1, 6);
    let (local, peer, other) = (relay(&all[..3]).await, relay(&[]).await, relay(&[]).await);
    let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), "")]));
    eventually(&cli, "the first run", SOON, || equal(&local, &peer, 3)).await;
    let more = "interval_seconds: 1, auth: {secret_key_file: missing}";
    cli.rewrite_config(&config(local.url(), &[Peer("p", peer.url(), ""), Peer("o", other.url(), more)]));
    running.signal("HUP").await;
    eventually(&cli, "the log says why", SOON, || cli.log().contains("missing")).await;
    local.fill(&all[3..]);
    eventually(&cli, "the old config works", SOON, || equal(&local, &peer, 6)).await;
    stop(&cli, running).await;
}

/// A job that is removed while it runs ends, and one that comes back runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_that_changes_is_taken_over() {
    let all = notes(1, 6);
    let (local, peer) = (relay(&all[..3]).await, relay(&[]).await);
    let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), "schedule: manual")]));
    sleep(Duration::from_secs(2)).await;
    assert!(job(&cli, "p").await.unwrap()["last_attempt"].is_null(), "nobody asked for it");
    cli.rewrite_config(&config(local.url(), &[Peer("p", peer.url(), "interval_seconds: 1")]));
    running.signal("HUP").await;
    eventually(&cli, "the first run", SOON, || equal(&local, &peer, 3)).await;
    stop(&cli, running).await;
}

/// What was sent before SIGTERM is accounted for after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_waits_for_the_oks_under_way() {
    let all = notes(1, 600);
    let local = relay(&all).await;
    // 10 ms for each OK, one after the other: 256 may be under way.
    let slow = Quirks { delay: Duration::from_millis(10), ..Quirks::default() };
    let peer = ModelRelay::start(slow).await;
    let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), "direction: push, interval_seconds: 1")]));
    eventually(&cli, "some are under way", SOON, || peer.received("EVENT") > 5).await;
    let started = Instant::now();
    running.signal("TERM").await;
    let output = running.finish().await;
    let took = started.elapsed();
    assert_eq!(output.code, 0, "{}", cli.log());
    assert!(took < Duration::from_secs(10), "{took:?}");
    let row = job(&cli, "p").await.unwrap();
    let stored = peer.ids(&json!({})).len();
    println!("ended after {took:?}: {stored} stored, {} received, {row}", peer.received("EVENT"));
    assert_eq!(row["state"], "idle", "{row:#?}");
    assert!(stored < 600, "it was over already");
    assert_eq!(row["up"], stored, "what was stored is in the state: {row:#?}");
    assert_eq!(peer.sent("OK"), peer.received("EVENT"), "each was waited for");

    peer.change(|quirks| quirks.delay = Duration::ZERO);
    let running = cli.spawn_logged(&["run"]);
    eventually(&cli, "the rest", SOON, || equal(&local, &peer, 600)).await;
    stop(&cli, running).await;
}

/// A relay that says nothing at all holds nothing up, and two signals are one too many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_does_not_wait_for_ever() {
    for signal in ["TERM", "INT"] {
        let local = relay(&notes(1, 3)).await;
        let peer = ModelRelay::start(Quirks { delay: Duration::from_secs(600), ..Quirks::default() }).await;
        let live = "interval_seconds: 1, live: true";
        let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), live)]));
        eventually(&cli, "the peer is asked", SOON, || peer.received("NEG-OPEN") > 0).await;
        let started = Instant::now();
        running.signal(signal).await;
        let output = running.finish().await;
        println!("{signal}: {:?}", started.elapsed());
        assert!(output.code == 0 && started.elapsed() < Duration::from_secs(10), "{signal}:\n{}", cli.log());
        assert_eq!(job(&cli, "p").await.unwrap()["state"], "idle");
    }
}
