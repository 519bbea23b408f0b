//! Thirty peers with three filters each, events on all sides, and relays that go away: afterwards
//! every event is everywhere it belongs, and the daemon holds no more memory than before.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{eventually, relay, start, stop};
use crate::support::events::{Author, Event, now};
use crate::support::model::ModelRelay;

const PEERS: usize = 30;
/// Groups of peers, each with a tag that only its own peers are sent.
const GROUPS: usize = 5;
/// Between two events, wherever they appear.
const PACE: Duration = Duration::from_millis(50);
/// Between two relays that lose their connections, or go away.
const TROUBLE: Duration = Duration::from_millis(700);
/// For what was under way when the last event appeared, and for pauses and backoff.
const CATCH_UP: Duration = Duration::from_secs(90);
/// Memory that the last two thirds may add. Up to 4000 ids are remembered of each of 31 relays, 75
/// bytes each: 9 MB when all are full, which takes minutes at this pace, and a part of it before.
const GROWTH: u64 = 8 << 20;

/// How long events appear: long enough in CI to lose every relay once or so.
fn duration() -> Duration {
    let seconds = std::env::var("TIELINE_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(25))
}

fn config(local: &str, peers: &[ModelRelay]) -> String {
    let mut yaml = format!(
        "local: {{url: '{local}', retry: {{base: 1s, cap: 2s}}}}\n\
         defaults: {{direction: both, live: true, interval_seconds: 20, retry: {{base: 1s, cap: 2s}}}}\npeers:\n"
    );
    for (index, peer) in peers.iter().enumerate() {
        let group = group(index);
        yaml += &format!(
            "- name: peer-{index}\n  url: '{}'\n  filters:\n  - {{kinds: [1]}}\n  - {{kinds: [7]}}\n  \
             - {{kinds: [1111], \"#t\": [{group}]}}\n",
            peer.url()
        );
    }
    yaml
}

fn group(peer: usize) -> String {
    format!("group-{}", peer % GROUPS)
}

/// An event of one of five sorts: two for all, one for a group, one of another kind and one of no
/// group that belong to nobody else.
fn write(dice: &mut fastrand::Rng, number: usize) -> Event {
    let author = Author::new(dice.u8(1..40));
    // Old ones appear as well.
    let at = if dice.u8(0..4) == 0 { now() - dice.u64(1000..10_000_000) } else { now() };
    let text = format!("{number}");
    match dice.u8(0..10) {
        0..=3 => author.event(1, at, &[], &text),
        4..=6 => author.event(7, at, &[], &text),
        7..=8 => author.event(1111, at, &[&["t", &group(dice.usize(0..GROUPS))]], &text),
        _ => author.event(if dice.bool() { 1111 } else { 30 }, at, &[&["t", "of-nobody"]], &text),
    }
}

/// What each relay has to hold of the kinds and groups that are kept in step.
fn wanted(of: Option<usize>) -> Vec<Value> {
    let groups: Vec<String> = match of {
        Some(peer) => vec![group(peer)],
        None => (0..GROUPS).map(group).collect(),
    };
    vec![json!({"kinds": [1]}), json!({"kinds": [7]}), json!({"kinds": [1111], "#t": groups})]
}

fn count(relay: &ModelRelay, filters: &[Value]) -> usize {
    filters.iter().map(|filter| relay.ids(filter).len()).sum()
}

/// Resident bytes of a process: proc_pid_status(5).
fn resident(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_peers_are_kept_in_step() {
    let seed = std::env::var("TIELINE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    let (mut dice, duration) = (fastrand::Rng::with_seed(seed), duration());
    println!("TIELINE_TEST_SEED={seed}, {duration:?}");
    let local = relay(&[]).await;
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        peers.push(relay(&[]).await);
    }
    let (cli, running) = start(&config(local.url(), &peers));

    let (mut published, mut lost, mut away) = (Vec::new(), 0, None);
    let (started, mut third) = (Instant::now(), None);
    let mut trouble = started + TROUBLE;
    while started.elapsed() < duration {
        let event = write(&mut dice, published.len());
        let at = dice.usize(0..=PEERS);
        let relay = peers.get(at).unwrap_or(&local);
        relay.fill(std::slice::from_ref(&event));
        published.push((at, event));
        if Instant::now() >= trouble {
            trouble += TROUBLE;
            lost += 1;
            let at = dice.usize(0..=PEERS);
            match away.take() {
                Some(gone) => peers.get(gone).unwrap_or(&local).start_again().await,
                None if lost % 4 == 0 => {
                    peers.get(at).unwrap_or(&local).stop();
                    away = Some(at);
                }
                None => peers.get(at).unwrap_or(&local).disconnect(),
            }
        }
        if third.is_none() && started.elapsed() > duration / 3 {
            third = Some(resident(running.id()));
        }
        sleep(PACE).await;
    }
    if let Some(gone) = away {
        peers.get(gone).unwrap_or(&local).start_again().await;
    }

    // A group's event that appeared at a peer of another group is not that peer's job, so it stays
    // there alone.
    let moves = |at: usize, event: &Event| match (event.kind, event.tag_values("t").next()) {
        (1 | 7, _) => true,
        (1111, Some(tag)) => tag != "of-nobody" && (at == PEERS || tag == group(at)),
        _ => false,
    };
    let all: Vec<&Event> = published.iter().filter(|(at, event)| moves(*at, event)).map(|(_, event)| event).collect();
    let of = |peer: usize| {
        let belongs = |event: &&&Event| event.tag_values("t").next().is_none_or(|tag| tag == group(peer));
        all.iter().filter(belongs).count()
    };
    let in_step = || {
        count(&local, &wanted(None)) >= all.len()
            && peers.iter().enumerate().all(|(index, peer)| count(peer, &wanted(Some(index))) >= of(index))
    };
    let took = eventually(&cli, "every event is everywhere it belongs", CATCH_UP, in_step).await;
    sleep(Duration::from_secs(2)).await;
    let (third, last) = (third.unwrap(), resident(running.id()));
    println!(
        "{} events, {} of them for other relays, {lost} times trouble, in step {took:?} after the last; resident {} kB at a third, {} kB at the end",
        published.len(),
        all.len(),
        third >> 10,
        last >> 10
    );

    // Not by numbers alone.
    for (at, event) in &published {
        let tag = event.tag_values("t").next();
        assert_eq!(holds(&local, event), *at == PEERS || moves(*at, event), "local: {}", event.json);
        for (index, peer) in peers.iter().enumerate() {
            let belongs = moves(*at, event) && tag.is_none_or(|tag| tag == group(index));
            assert_eq!(holds(peer, event), *at == index || belongs, "peer-{index}: {}", event.json);
        }
    }
    assert!(last < third + GROWTH, "resident: {third} bytes at a third, {last} at the end");
    assert!(!cli.log().contains("panicked") && !cli.log().contains("ERROR"), "{}", cli.log());
    stop(&cli, running).await;
}

fn holds(relay: &ModelRelay, event: &Event) -> bool {
    !relay.ids(&json!({"ids": [event.id]})).is_empty()
}
