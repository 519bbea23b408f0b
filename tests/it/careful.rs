//! Events that are not moved, or not again: refused, expired, superseded, vanished and the like.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tieline::job_spec::Direction;
use tieline::nostr::RelayUrl;
use tieline::outcome::Report;

use crate::support::events::{Author, EPOCH, Event, ids, now};
use crate::support::model::{ModelRelay, Neg, Quirks, Verdict};
use crate::support::relay::TestRelay;
use crate::support::run::{Run, state};

/// Two scripted relays and a state. The job pulls from `peer`, which has it all.
struct World {
    local: ModelRelay,
    peer: ModelRelay,
    run: Run,
    _directory: TempDir,
}

impl World {
    async fn new(local: Quirks, peer: Quirks, events: &[Event]) -> Self {
        let (local, peer) = (ModelRelay::start(local).await, ModelRelay::start(peer).await);
        peer.fill(events);
        let directory = tempfile::tempdir().unwrap();
        let state = state(directory.path()).await;
        let run = Run::new(local.url(), peer.url(), &json!({}), Direction::Pull).knowing(&state);
        Self { local, peer, run, _directory: directory }
    }

    /// Runs it again: nothing is fetched, nothing is offered, and this much is parked, for this
    /// reason.
    async fn is_idle_with(&self, parked: u64, reason: &str) {
        self.local.clear_record();
        self.peer.clear_record();
        assert_eq!(self.run.is_idle().await.parked, parked);
        assert_eq!(self.local.offered(), [""; 0]);
        assert_eq!(self.peer.served(), [""; 0]);
        let url: RelayUrl = self.local.url().parse().unwrap();
        let rows = self.run.state.as_ref().unwrap().list_parked(Some(&url), now(), 100).await.unwrap();
        assert_eq!(rows.len() as u64, parked);
        assert!(rows.iter().all(|row| row.reason == reason), "{rows:#?}");
    }
}

fn one(reason: &'static str, count: u64) -> BTreeMap<&'static str, u64> {
    BTreeMap::from([(reason, count)])
}

fn ann() -> Author {
    Author::new(1)
}

/// Skipped for this reason, counted, parked, and neither offered nor fetched again.
async fn is_skipped(events: &[Event], reason: &'static str) {
    let good = Author::new(2).notes(5, EPOCH);
    let world = World::new(Quirks::default(), Quirks::default(), &[events, &good].concat()).await;
    let report = world.run.converges().await;
    assert_eq!(report.downloaded.skipped, one(reason, events.len() as u64), "{report:#?}");
    assert_eq!(report.downloaded.stored, 5, "{report:#?}");
    assert_eq!(world.local.ids(&json!({})), ids(&good));
    assert_eq!(world.local.offered().len(), 5);
    world.is_idle_with(events.len() as u64, &format!("skipped:{reason}")).await;
}

#[tokio::test]
async fn expired_events_are_skipped() {
    is_skipped(&[ann().expiring(EPOCH, EPOCH + 60), ann().expiring(EPOCH, now() + 20)], "expired").await;
}

#[tokio::test]
async fn events_that_expire_later_are_moved() {
    let lasting = ann().expiring(EPOCH, now() + 3600);
    let world = World::new(Quirks::default(), Quirks::default(), std::slice::from_ref(&lasting)).await;
    world.run.converges().await;
    assert_eq!(world.local.ids(&json!({})), ids([&lasting]));
}

#[tokio::test]
async fn protected_events_are_skipped() {
    is_skipped(&[ann().protected(EPOCH), ann().protected(EPOCH + 1)], "protected").await;
}

#[tokio::test]
async fn forged_events_are_skipped() {
    is_skipped(&[ann().note(EPOCH).with_forged_signature()], "invalid").await;
}

/// nostr-relay keeps ephemeral events for a while, and lists them.
#[tokio::test]
async fn ephemeral_events_are_skipped() {
    let mut keepers = vec![TestRelay::nostr_relay().await];
    keepers.extend(TestRelay::strfry().await);
    for peer in keepers {
        let (local, directory) = (ModelRelay::start(Quirks::default()).await, tempfile::tempdir().unwrap());
        let fleeting = ann().ephemeral(now());
        let note = ann().note(EPOCH);
        peer.fill(&[fleeting.clone(), note.clone()]).await;
        let filter = json!({"authors": [ann().pubkey()]});
        assert_eq!(peer.ids(&filter).await, ids([&fleeting, &note]), "{} does not keep it", peer.name());
        let state = state(directory.path()).await;
        let run = Run::new(local.url(), peer.url(), &filter, Direction::Pull).knowing(&state);
        let report = run.converges().await;
        assert_eq!(report.downloaded.skipped, one("ephemeral", 1), "{report:#?}");
        assert_eq!(local.offered(), [note.id]);
        assert_eq!(run.is_idle().await.parked, 1);
    }
}

#[tokio::test]
async fn excluded_events_are_skipped() {
    let (note, reaction) = (ann().note(EPOCH), ann().event(7, EPOCH, &[], "+"));
    let mut world = World::new(Quirks::default(), Quirks::default(), &[note.clone(), reaction.clone()]).await;
    world.run = world.run.excluding(&json!({"kinds": [7]}));
    let report = world.run.converges().await;
    assert_eq!(report.downloaded.skipped, one("excluded", 1), "{report:#?}");
    assert_eq!(world.local.ids(&json!({})), ids([&note]));
    world.is_idle_with(1, "skipped:excluded").await;
    // It is this job's rule, and no other's.
    world.run.spec.exclude.clear();
    assert_eq!(world.run.converges().await.downloaded.stored, 1);
    assert_eq!(world.local.ids(&json!({})), ids([&note, &reaction]));
}

/// Events by Bob, with this answer to them; Ann's are welcome.
async fn with_answer(verdict: fn() -> Verdict) -> (World, Report) {
    let bob = Author::new(2).pubkey();
    let quirks = Quirks::default().on_event(move |event| if event.pubkey == bob { verdict() } else { Verdict::Usual });
    let events = [ann().notes(5, EPOCH), Author::new(2).notes(3, EPOCH)].concat();
    let world = World::new(quirks, Quirks::default(), &events).await;
    let report = world.run.converges().await;
    assert_eq!(world.local.ids(&json!({})), ids(&events[..5]));
    assert_eq!(report.downloaded.stored, 5, "{report:#?}");
    (world, report)
}

#[tokio::test]
async fn what_policy_refuses_is_sent_once() {
    let (world, report) = with_answer(|| Verdict::Refuse("blocked: not a member".into())).await;
    assert_eq!(report.downloaded.refused, one("blocked", 3), "{report:#?}");
    assert_eq!(world.local.offered().len(), 8);
    world.is_idle_with(3, "refused:blocked").await;
}

#[tokio::test]
async fn what_is_acknowledged_and_never_served_is_found_out() {
    let (world, report) = with_answer(|| Verdict::Swallow(String::new())).await;
    assert_eq!(report.downloaded.refused, one("not-served", 3), "{report:#?}");
    // Twice each: once might be an accident.
    assert_eq!(world.local.offered().len(), 5 + 2 * 3);
    world.is_idle_with(3, "not-served").await;
}

#[tokio::test]
async fn what_is_hidden_is_left_for_a_while() {
    let (world, report) = with_answer(|| Verdict::Swallow("purgatory: no git data yet".into())).await;
    assert_eq!(report.downloaded.refused, one("purgatory", 3), "{report:#?}");
    assert_eq!(world.local.offered().len(), 8);
    world.is_idle_with(3, "hidden:purgatory").await;
}

/// An error may be over by the next pass: the run gives up, and the next one tries again.
#[tokio::test]
async fn what_fails_is_tried_again() {
    let quirks = Quirks::default().on_event(|_| Verdict::Refuse("error: database is locked".into()));
    let world = World::new(quirks, Quirks::default(), &ann().notes(3, EPOCH)).await;
    let report = world.run.once().await;
    assert_eq!((report.downloaded.failed, report.outcome), (3, tieline::outcome::Ending::Partial), "{report:#?}");
    world.local.change(|quirks| quirks.on_event = None);
    assert_eq!(world.run.converges().await.downloaded.stored, 3);
}

/// Listed by NIP-77, and not there when asked for.
#[tokio::test]
async fn what_the_source_does_not_serve_has_vanished() {
    let events = ann().notes(200, EPOCH);
    let unserved = ids(&events[60..130]);
    let world = World::new(Quirks::default(), Quirks { unserved, ..Quirks::default() }, &events).await;
    let report = world.run.converges().await;
    assert_eq!((report.downloaded.stored, report.downloaded.vanished), (130, 70), "{report:#?}");
    world.is_idle_with(70, "vanished").await;
    // It holds for that source alone.
    let another = ModelRelay::start(Quirks::default()).await;
    another.fill(&events);
    let run = Run::new(world.local.url(), another.url(), &json!({}), Direction::Pull);
    let report = run.knowing(world.run.state.as_ref().unwrap()).converges().await;
    assert_eq!(report.downloaded.stored, 70, "{report:#?}");
}

/// The newest version wins on both sides, and the older one is not offered on every run.
#[tokio::test]
async fn an_older_version_gives_way() {
    let mut relays =
        vec![TestRelay::in_process().await, TestRelay::nostr_relay().await, TestRelay::model().await, listed().await];
    relays.extend(TestRelay::strfry().await);
    let mut number = 10;
    for (kind, direction) in
        [(0, Direction::Both), (30_023, Direction::Both), (0, Direction::Push), (0, Direction::Pull)]
    {
        for relay in &relays {
            number += 1;
            let (author, other, directory) =
                (Author::new(number), TestRelay::model().await, tempfile::tempdir().unwrap());
            let state = state(directory.path()).await;
            let version = |at, content| match kind {
                0 => author.replaceable(0, at, content),
                _ => author.addressable(kind, "page", at, content),
            };
            let (old, new) = (version(EPOCH, "old"), version(EPOCH + 5, "new"));
            // A pull brings the new one to the relay; a push offers it the old one, in vain.
            let (here, there) = if direction == Direction::Pull { (&old, &new) } else { (&new, &old) };
            let what = format!("{}, kind {kind}, {direction}", relay.name());
            relay.fill(std::slice::from_ref(here)).await;
            other.fill(std::slice::from_ref(there)).await;
            let filter = json!({"authors": [author.pubkey()]});
            let (local, peer) = if direction == Direction::Push { (&other, relay) } else { (relay, &other) };
            let mut run = Run::new(local.url(), peer.url(), &filter, direction).knowing(&state);
            // nostr-relay never answers.
            run.neg_open_timeout = Duration::from_millis(500);
            let report = run.converges().await;
            let held = relay.ids(&filter).await;
            // It takes an older version beside the newer one.
            if relay.name() == "nostr-relay" {
                assert!(held.contains(&new.id), "{what}: {report:#?}");
            } else {
                assert_eq!(held, ids([&new]), "{what}: {report:#?}");
            }
            let left = if direction == Direction::Push { &old } else { &new };
            assert_eq!(other.ids(&filter).await, ids([left]), "{what}: {report:#?}");
            run.is_idle().await;
        }
    }
}

/// What was refused for something newer is offered again to a relay that lost everything.
#[tokio::test]
async fn a_relay_that_was_reset_gets_what_it_once_refused() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(directory.path()).await;
    let (local, peer) = (ModelRelay::start(Quirks::default()).await, ModelRelay::start(Quirks::default()).await);
    let author = Author::new(9);
    let (old, new) = (author.replaceable(0, EPOCH, "old"), author.replaceable(0, EPOCH + 5, "new"));
    local.fill(std::slice::from_ref(&new));
    peer.fill(std::slice::from_ref(&old));
    let run = Run::new(local.url(), peer.url(), &json!({}), Direction::Pull).knowing(&state);
    assert_eq!(run.converges().await.downloaded.refused["replaced"], 1);
    assert_eq!(run.is_idle().await.parked, 1);
    local.forget(&[new]);
    assert_eq!(run.converges().await.downloaded.stored, 1);
    assert_eq!(local.ids(&json!({})), ids([&old]));
}

async fn listed() -> TestRelay {
    TestRelay::Model(ModelRelay::start(Quirks { neg: Neg::Err("blocked: off".into()), ..Quirks::default() }).await)
}
