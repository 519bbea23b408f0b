//! More than one process on one state, and what an idle one costs.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Peer, SOON, config, equal, eventually, job, job_becomes, notes, relay, start, stop};
use crate::support::model::{Frame, ModelRelay, Quirks, Way};
use crate::support::relay::TestRelay;

/// How often a run began at this relay while another connection's run still had something to
/// ask. A session that only waits for its NEG-CLOSE, which a process that has ended does not
/// send, is no run.
fn overlaps(relay: &ModelRelay) -> usize {
    let frames: Vec<_> = relay.frames().into_iter().filter(|frame| frame.way == Way::Received).collect();
    let name = |frame: &Frame| serde_json::from_str::<Value>(&frame.text).unwrap()[1].to_string();
    let mut overlaps = 0;
    for (at, opened) in frames.iter().enumerate().filter(|(_, frame)| frame.verb == "NEG-OPEN") {
        let session = name(opened);
        let of_run = frames[at + 1..].iter().filter(|frame| frame.connection == opened.connection);
        let until_closed = of_run.take_while(|frame| !(frame.verb == "NEG-CLOSE" && name(frame) == session));
        let asks = until_closed.filter(|frame| !frame.verb.ends_with("CLOSE"));
        let Some(last) = asks.last() else { continue };
        let others = frames[at + 1..].iter().take_while(|frame| !std::ptr::eq(*frame, last));
        overlaps += others.filter(|frame| frame.verb == "NEG-OPEN" && frame.connection != opened.connection).count();
    }
    overlaps
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_daemons_and_a_one_shot_do_not_run_a_job_at_once() {
    let all = notes(1, 60);
    let local = relay(&all[..40]).await;
    let slow = Quirks { delay: Duration::from_millis(60), ..Quirks::default() };
    let peer = ModelRelay::start(slow).await;
    peer.fill(&all[20..]);
    let (cli, first) = start(&config(local.url(), &[Peer("p", peer.url(), "")]));
    let second = cli.spawn_logged(&["run"]);
    let mut codes = Vec::new();
    for _ in 0..12 {
        let output = cli.run(&["sync", "--json"]).await;
        assert!(matches!(output.code, 0 | 4), "{output:#?}");
        let outcome = output.json_lines()[0]["outcome"].clone();
        assert_eq!(outcome, if output.code == 0 { "converged" } else { "locked" });
        codes.push(output.code);
        sleep(Duration::from_millis(200)).await;
    }
    eventually(&cli, "both are equal", SOON, || equal(&local, &peer, 60)).await;
    println!("one-shots ended with {codes:?}");
    assert!(codes.contains(&4), "they never met");
    assert_eq!(overlaps(&peer), 0);
    // No event was moved twice.
    let offered = [local.offered(), peer.offered()].concat();
    assert_eq!(offered.len(), 40, "{offered:#?}");
    stop(&cli, first).await;
    // The other goes on alone.
    local.fill(&notes(2, 3));
    eventually(&cli, "the second daemon", Duration::from_secs(60), || equal(&local, &peer, 63)).await;
    stop(&cli, second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_one_shot_is_told_who_holds_the_job() {
    let local = relay(&notes(1, 3)).await;
    let peer = ModelRelay::start(Quirks { delay: Duration::from_millis(1500), ..Quirks::default() }).await;
    let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), "")]));
    eventually(&cli, "the daemon runs it", SOON, || peer.received("NEG-OPEN") > 0).await;
    let output = cli.run(&["sync"]).await;
    assert_eq!(output.code, 4, "{output:#?}");
    let said = output.stdout + &output.stderr;
    assert!(said.contains("another run holds this job") && said.contains(&running.id().to_string()), "{said}");
    // It says nothing about the job.
    assert_eq!(job(&cli, "p").await.unwrap()["failures"], 0);
    peer.change(|quirks| quirks.delay = Duration::ZERO);
    eventually(&cli, "the daemon goes on", SOON, || equal(&local, &peer, 3)).await;
    stop(&cli, running).await;
}

/// Two daemons with streams do not play ping-pong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_live_daemons_converge_and_rest() {
    let (local, peer) = (relay(&notes(1, 3)).await, relay(&notes(2, 3)).await);
    let (cli, first) = start(&config(local.url(), &[Peer("p", peer.url(), "interval_seconds: 1, live: true")]));
    let second = cli.spawn_logged(&["run"]);
    eventually(&cli, "history", SOON, || equal(&local, &peer, 6)).await;
    sleep(Duration::from_secs(3)).await;
    local.fill(&notes(3, 20));
    peer.fill(&notes(4, 20));
    eventually(&cli, "what is new", SOON, || equal(&local, &peer, 46)).await;
    sleep(Duration::from_secs(2)).await;
    let offered = local.offered().len() + peer.offered().len();
    sleep(Duration::from_secs(4)).await;
    assert_eq!(local.offered().len() + peer.offered().len(), offered, "it goes on");
    stop(&cli, first).await;
    stop(&cli, second).await;
}

/// Against real relays, whose connections cost what they cost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_daemon_costs_next_to_nothing() {
    let local = TestRelay::in_process().await;
    let peers = [TestRelay::in_process().await, TestRelay::in_process().await, TestRelay::in_process().await];
    for (index, peer) in peers.iter().enumerate() {
        peer.fill(&notes(u8::try_from(index).unwrap() + 1, 20)).await;
    }
    let every = "interval_seconds: 300, live: true";
    let yaml = config(
        local.url(),
        &[Peer("a", peers[0].url(), every), Peer("b", peers[1].url(), every), Peer("c", peers[2].url(), every)],
    );
    let (cli, running) = start(&yaml);
    for peer in ["a", "b", "c"] {
        job_becomes(&cli, peer, Duration::from_secs(60), |row| row["state"] == "converged").await;
    }
    let all = json!({"kinds": [1]});
    for _ in 0..100 {
        if local.ids(&all).await.len() == 60 && peers[0].ids(&all).await.len() == 60 {
            break;
        }
        sleep(Duration::from_millis(200)).await;
    }
    sleep(Duration::from_secs(3)).await;
    let before = cpu(running.id());
    sleep(Duration::from_secs(10)).await;
    let spent = cpu(running.id()) - before;
    println!("idle: {spent:?} of processor time in 10 s, {} % of a core", spent.as_secs_f64() * 10.0);
    assert!(spent < Duration::from_millis(100), "{spent:?}:\n{}", cli.log());
    stop(&cli, running).await;
}

/// Processor time that a process has used: fields 14 and 15 of proc_pid_stat(5), in hundredths.
fn cpu(id: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks: u64 = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}
