//! What an author has deleted or disowned (NIP-09, NIP-62) stays away.

use std::time::Duration;

use serde_json::json;
use tieline::job_spec::Direction;

use crate::support::events::{Author, EPOCH, Event, ids};
use crate::support::model::{ModelRelay, Neg, Quirks, Verdict};
use crate::support::relay::TestRelay;
use crate::support::run::{Run, state};

fn ann() -> Author {
    Author::new(1)
}

fn bob() -> Author {
    Author::new(2)
}

/// A relay that hides what was deleted, and says OK to it: it would never tell.
fn polite() -> Quirks {
    Quirks::default().on_event(|event| match event.kind {
        1 => Verdict::Say("thank you".into()),
        _ => Verdict::Usual,
    })
}

/// What the requests at one relay keep from it, and what passes.
struct Case {
    /// At the relay that holds the requests.
    held: Vec<Event>,
    /// At the other.
    other: Vec<Event>,
    /// Of those, what must not be offered.
    gone: Vec<Event>,
}

/// One event deleted by its author, another that somebody else would like to see deleted.
fn by_id() -> Case {
    let (gone, stays, others) = (ann().note(EPOCH), ann().note(EPOCH + 1), ann().note(EPOCH + 2));
    let held = vec![ann().delete(EPOCH + 10, &[&gone]), bob().delete(EPOCH + 10, &[&others])];
    Case { held, other: vec![gone.clone(), stays, others], gone: vec![gone] }
}

/// A version older than the request, and a newer one of another address.
fn by_address() -> Case {
    let older = ann().addressable(30_023, "deleted", EPOCH, "older");
    let newer = ann().addressable(30_023, "written again", EPOCH + 20, "newer");
    let others = ann().addressable(30_023, "not bob's", EPOCH, "older");
    let addresses: Vec<String> = [&older, &newer, &others].map(|event| event.address().unwrap()).into();
    let own = ann().delete_addresses(EPOCH + 10, &[&addresses[0], &addresses[1]]);
    let foreign = bob().delete_addresses(EPOCH + 10, &[&addresses[2]]);
    Case { held: vec![own, foreign], other: vec![older.clone(), newer, others], gone: vec![older] }
}

/// All of an author's events up to the request; `relay` is where it holds.
fn vanished(relay: &str) -> Case {
    let (before, after, others) = (ann().note(EPOCH), ann().note(EPOCH + 20), bob().note(EPOCH));
    Case { held: vec![ann().vanish(EPOCH + 10, relay)], other: vec![before.clone(), after, others], gone: vec![before] }
}

/// The relay that knows of the requests, and the other.
struct World {
    knows: ModelRelay,
    other: ModelRelay,
    case: Case,
}

impl World {
    async fn new(quirks: Quirks, case: impl Fn(&str) -> Case) -> Self {
        let (knows, other) = (ModelRelay::start(quirks.clone()).await, ModelRelay::start(quirks).await);
        let case = case(knows.url());
        knows.fill(&case.held);
        other.fill(&case.other);
        Self { knows, other, case }
    }

    /// What passes.
    fn rest(&self) -> impl Iterator<Item = &Event> {
        let gone = ids(&self.case.gone);
        self.case.other.iter().filter(move |event| !gone.contains(&event.id))
    }

    fn nothing_gone_was_offered(&self, what: &str) {
        let offered = self.knows.offered();
        assert!(self.case.gone.iter().all(|event| !offered.contains(&event.id)), "{what}");
    }
}

/// With NIP-77 and without: what a relay that holds the requests gets to see, whichever side it
/// is on.
async fn holds(name: &str, case: impl Fn(&str) -> Case, travels: bool) {
    let listed = Quirks { neg: Neg::Err("blocked: no negentropy".into()), ..polite() };
    for (how, quirks) in [("mediated", polite()), ("paged", listed)] {
        for knows_is_local in [true, false] {
            let what = format!("{name}, {how}, local knows: {knows_is_local}");
            both_ways(&World::new(quirks.clone(), &case).await, knows_is_local, travels, &what).await;
            one_way(&World::new(quirks.clone(), &case).await, knows_is_local, &what).await;
        }
    }
}

/// Neither relay serves what is gone, and all else is on both.
async fn both_ways(world: &World, knows_is_local: bool, travels: bool, what: &str) {
    let World { knows, other, case } = world;
    let (local, peer) = if knows_is_local { (knows, other) } else { (other, knows) };
    let run = Run::both(local.url(), peer.url());
    let first = run.converges().await;
    world.nothing_gone_was_offered(what);
    assert_eq!(knows.ids(&json!({})), ids(case.held.iter().chain(world.rest())), "{what}: {first:#?}");
    let expected = if travels { ids(case.held.iter().chain(world.rest())) } else { ids(&case.other) };
    assert_eq!(other.ids(&json!({})), expected, "{what}: {first:#?}");
    if travels {
        run.is_idle().await;
    }
}

/// Into the relay that knows: its requests are not moved, and hold all the same. What is kept
/// away is remembered, and not even fetched again.
async fn one_way(world: &World, knows_is_local: bool, what: &str) {
    let World { knows, other, case } = world;
    let (local, peer, direction) =
        if knows_is_local { (knows, other, Direction::Pull) } else { (other, knows, Direction::Push) };
    let directory = tempfile::tempdir().unwrap();
    let state = state(directory.path()).await;
    let run = Run::new(local.url(), peer.url(), &json!({}), direction).knowing(&state);
    let first = run.converges().await;
    world.nothing_gone_was_offered(what);
    assert_eq!(knows.ids(&json!({})), ids(case.held.iter().chain(world.rest())), "{what}: {first:#?}");
    assert_eq!(other.ids(&json!({})), ids(&case.other), "{what}: {first:#?}");
    let moved = if knows_is_local { &first.downloaded } else { &first.uploaded };
    assert_eq!(moved.skipped.values().sum::<u64>(), case.gone.len() as u64, "{what}: {first:#?}");
    assert_eq!(run.is_idle().await.parked, case.gone.len() as u64, "{what}");
}

#[tokio::test]
async fn a_deleted_event_stays_away() {
    holds("by id", |_| by_id(), true).await;
}

#[tokio::test]
async fn deleted_versions_stay_away() {
    holds("by address", |_| by_address(), true).await;
}

#[tokio::test]
async fn who_vanished_everywhere_stays_away() {
    holds("vanished", |_| vanished("ALL_RELAYS"), true).await;
}

/// A request to one relay stays there, and holds there alone.
#[tokio::test]
async fn who_vanished_from_one_relay_stays_away_from_it() {
    holds("vanished from one", vanished, false).await;
}

/// It names another relay, and does not hold where it happens to be. It is not carried on.
#[tokio::test]
async fn a_request_to_another_relay_does_not_hold() {
    let world = World::new(polite(), |_| vanished("wss://elsewhere.example")).await;
    let World { knows, other, case } = &world;
    let report = Run::both(knows.url(), other.url()).converges().await;
    assert_eq!(knows.ids(&json!({})), ids(case.held.iter().chain(&case.other)), "{report:#?}");
    assert_eq!(other.ids(&json!({})), ids(&case.other), "{report:#?}");
    assert_eq!(report.uploaded.skipped["vanish"], 1);
}

/// Real relays take the request and let go of the event.
#[tokio::test]
async fn a_deletion_reaches_real_relays() {
    let mut relays = vec![TestRelay::in_process().await, TestRelay::nostr_relay().await];
    relays.extend(TestRelay::strfry().await);
    for (number, relay) in relays.iter().enumerate() {
        for relay_is_local in [true, false] {
            let author = Author::new(10 + 2 * number as u8 + u8::from(relay_is_local));
            let (gone, stays) = (author.note(EPOCH), author.note(EPOCH + 1));
            let request = author.delete(EPOCH + 10, &[&gone]);
            let knows = TestRelay::model().await;
            knows.fill(std::slice::from_ref(&request)).await;
            relay.fill(&[gone, stays.clone()]).await;
            let (local, peer) = if relay_is_local { (relay, &knows) } else { (&knows, relay) };
            let filter = json!({"authors": [author.pubkey()]});
            let mut run = Run::new(local.url(), peer.url(), &filter, Direction::Both);
            // nostr-relay never answers.
            run.neg_open_timeout = Duration::from_millis(500);
            run.converges().await;
            for relay in [&knows, relay] {
                assert_eq!(relay.ids(&filter).await, ids([&request, &stays]), "{}", relay.name());
            }
            run.is_idle().await;
        }
    }
}
