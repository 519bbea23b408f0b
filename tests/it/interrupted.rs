//! Connections that end, or fall silent, at every point of a run.

use std::time::Duration;

use futures::StreamExt;
use serde_json::json;
use tieline::job_spec::Side;
use tieline::outcome::{Ending, Report};
use tokio::time::Instant;

use crate::support::events::{Author, EPOCH, Event};
use crate::support::model::{ModelRelay, Neg, Quirks};
use crate::support::proxy::{Fault, Proxy};
use crate::support::relay::TestRelay;
use crate::support::run::Run;

/// Runs under way at once: most of their time is spent in waiting.
const AT_ONCE: usize = 16;

/// Two relays, one of them behind a proxy.
struct World {
    local: TestRelay,
    peer: TestRelay,
    proxy: Proxy,
    run: Run,
    ours: Vec<Event>,
    theirs: Vec<Event>,
}

impl World {
    /// Some notes on each side, some on both, and a request to delete one of them.
    async fn new(local: TestRelay, peer: TestRelay, behind: Side) -> Self {
        let notes = Author::new(1).notes(12, EPOCH);
        let gone = Author::new(2).note(EPOCH);
        let request = Author::new(2).delete(EPOCH + 1, &[&gone]);
        local.fill(&notes[..8]).await;
        local.fill(std::slice::from_ref(&request)).await;
        peer.fill(&notes[4..]).await;
        peer.fill(std::slice::from_ref(&gone)).await;
        let proxy = Proxy::start(if behind == Side::Local { local.url() } else { peer.url() }).await;
        let run = match behind {
            Side::Local => Run::both(proxy.url(), peer.url()),
            Side::Peer => Run::both(local.url(), proxy.url()),
        };
        let ours = [&notes[..4], &[request]].concat();
        Self { local, peer, proxy, run, ours, theirs: notes[8..].to_vec() }
    }

    async fn is_in_step(&self, what: &str) {
        let all = json!({});
        let (local, peer) = (self.local.ids(&all).await, self.peer.ids(&all).await);
        assert_eq!(local, peer, "{what}");
        assert_eq!(local.len(), 13, "{what}");
        assert!(self.ours.iter().chain(&self.theirs).all(|event| local.contains(&event.id)), "{what}");
    }
}

async fn model(neg: Neg) -> TestRelay {
    TestRelay::Model(ModelRelay::start(Quirks { neg, ..Quirks::default() }).await)
}

fn no() -> Neg {
    Neg::Err("blocked: negentropy is off".into())
}

/// Cuts after every message that an uncut run takes, each time with new relays.
async fn every_cut(neg: fn() -> [Neg; 2], behind: Side) {
    let world = || async {
        let [local, peer] = neg();
        World::new(model(local).await, model(peer).await, behind).await
    };
    let uncut = world().await;
    uncut.run.converges().await;
    uncut.is_in_step("without a cut").await;
    let messages = uncut.proxy.messages();
    assert!((20..200).contains(&messages), "{messages} messages");
    let cuts = futures::stream::iter(0..=messages).map(|after| async move {
        let world = world().await;
        world.proxy.set_fault(Fault::CutOnce(after));
        cut(&world, &format!("{:?} behind the proxy, cut after {after} of {messages}", behind)).await;
    });
    cuts.buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// The cut is set.
async fn cut(world: &World, what: &str) {
    let first = world.run.once().await;
    assert!(matches!(first.outcome, Ending::Converged | Ending::Partial | Ending::Failed), "{what}: {first:#?}");
    assert_eq!(first.error.is_some(), first.outcome != Ending::Converged, "{what}: {first:#?}");
    let second = world.run.converges().await;
    for report in [&first, &second] {
        assert_eq!(report.uploaded.total(), report.local_only, "{what}: {report:#?}");
        assert_eq!(report.downloaded.total(), report.peer_only, "{what}: {report:#?}");
    }
    world.is_in_step(what).await;
    let moved = |report: &Report| report.uploaded.stored + report.downloaded.stored;
    // Of 9 events none is sent in vain twice, and none is said to be lost.
    assert!(moved(&first) + moved(&second) <= 9, "{what}: {first:#?} {second:#?}");
    world.run.is_idle().await;
}

#[tokio::test]
async fn negentropy_on_both_sides() {
    every_cut(|| [Neg::Answers, Neg::Answers], Side::Peer).await;
    every_cut(|| [Neg::Answers, Neg::Answers], Side::Local).await;
}

#[tokio::test]
async fn negentropy_here_alone() {
    every_cut(|| [Neg::Answers, no()], Side::Peer).await;
    every_cut(|| [Neg::Answers, no()], Side::Local).await;
}

#[tokio::test]
async fn negentropy_there_alone() {
    every_cut(|| [no(), Neg::Answers], Side::Peer).await;
}

#[tokio::test]
async fn negentropy_on_neither_side() {
    every_cut(|| [no(), no()], Side::Peer).await;
}

/// A relay that goes away for good: what was moved stays moved, and the next run does the rest.
#[tokio::test]
async fn a_relay_that_does_not_come_back_fails_the_run() {
    for after in [0, 1, 9, 15, 20] {
        let world = World::new(model(Neg::Answers).await, model(Neg::Answers).await, Side::Peer).await;
        world.proxy.set_fault(Fault::CutForGood(after));
        let report = world.run.once().await;
        assert_eq!(report.outcome, Ending::Failed, "after {after}: {report:#?}");
        let error = report.error.unwrap();
        assert!(error.contains(world.proxy.url()), "{error}");
        world.proxy.set_fault(Fault::None);
        world.run.converges().await;
        world.is_in_step("afterwards").await;
        world.run.is_idle().await;
    }
}

/// Half-open: nothing comes, and nothing is closed.
#[tokio::test]
async fn a_stalled_connection_is_an_error_in_time() {
    let stalls = futures::stream::iter((0..24).step_by(2)).map(|after| async move {
        let mut world = World::new(model(Neg::Answers).await, model(Neg::Answers).await, Side::Peer).await;
        world.run.answer_timeout = Duration::from_millis(500);
        world.run.neg_open_timeout = Duration::from_millis(500);
        world.run.spec.limits.passes = 1;
        world.proxy.set_fault(Fault::Stall(after));
        let started = Instant::now();
        let report = world.run.once().await;
        // An OK that does not come is that event's failure.
        assert!(matches!(report.outcome, Ending::Failed | Ending::Partial), "after {after}: {report:#?}");
        let error = report.error.as_ref().unwrap();
        assert!(error.contains(world.proxy.url()), "after {after}: {error}");
        // Silence on NEG-OPEN, then on the REQ that takes its place, in two steps; 250 ms more
        // each until a deadline is looked at.
        assert!(started.elapsed() < Duration::from_secs(6), "after {after}: {:?}", started.elapsed());
        world.proxy.set_fault(Fault::None);
        world.run.spec.limits.passes = 4;
        world.run.answer_timeout = Duration::from_secs(30);
        world.run.neg_open_timeout = Duration::from_secs(10);
        world.run.converges().await;
        world.is_in_step("afterwards").await;
        world.run.is_idle().await;
    });
    stalls.buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// Of real relays, a cut here and there.
#[tokio::test]
async fn real_relays_recover_too() {
    for after in [0, 2, 5, 13, 25] {
        let world = World::new(TestRelay::in_process().await, TestRelay::in_process().await, Side::Peer).await;
        world.proxy.set_fault(Fault::CutOnce(after));
        cut(&world, &format!("cut after {after}")).await;
    }
}
