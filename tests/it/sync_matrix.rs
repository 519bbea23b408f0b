//! What is asked of every job, whichever relays it runs between: each pair of them, each
//! direction, sets that meet in every way.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::{Value, json};
use tieline::job_spec::Direction;
use tieline::outcome::Report;
use tieline::state::State;

use crate::support::events::{Author, EPOCH, Event, ids};
use crate::support::model::{Info, ModelRelay, Neg, Quirks};
use crate::support::relay::TestRelay;
use crate::support::run::{Run, state};

const DIRECTIONS: [Direction; 3] = [Direction::Pull, Direction::Push, Direction::Both];

/// Some notes of which each side has a part.
struct Case {
    name: &'static str,
    /// Of how many seconds.
    seconds: u64,
    local: Range<usize>,
    peer: Range<usize>,
}

const CASES: [Case; 7] = [
    Case { name: "empty", seconds: 1, local: 0..0, peer: 0..0 },
    Case { name: "nothing here", seconds: 20, local: 0..0, peer: 0..20 },
    Case { name: "nothing there", seconds: 20, local: 0..20, peer: 0..0 },
    Case { name: "equal", seconds: 20, local: 0..20, peer: 0..20 },
    Case { name: "disjoint", seconds: 40, local: 0..20, peer: 20..40 },
    Case { name: "overlapping", seconds: 20, local: 0..30, peer: 10..40 },
    Case { name: "one second", seconds: 1, local: 0..60, peer: 20..80 },
];

/// More than three of the pages that a relay is asked for, some of them within a second.
const MANY: Case = Case { name: "many", seconds: 450, local: 0..1290, peer: 10..1300 };

/// Two relays, and what earlier runs between them have left.
struct Pair<'a> {
    local: &'a TestRelay,
    peer: &'a TestRelay,
    state: &'a State,
    /// The author whose events are synced in a case: nobody else's are touched.
    authors: Range<u8>,
}

impl Pair<'_> {
    async fn holds_for_every_direction(&mut self) {
        for direction in DIRECTIONS {
            for case in CASES {
                self.check(&case, direction).await;
            }
        }
        self.check(&MANY, Direction::Both).await;
    }

    async fn check(&mut self, case: &Case, direction: Direction) {
        let (local, peer) = (self.local, self.peer);
        let what = format!("{} to {}, {direction}, {}", local.name(), peer.name(), case.name);
        let author = Author::new(self.authors.next().expect("more authors are needed"));
        let filter = json!({"authors": [author.pubkey()]});
        let notes = notes(&author, case);
        local.fill(&notes[case.local.clone()]).await;
        peer.fill(&notes[case.peer.clone()]).await;
        let (here, there) = (ids(&notes[case.local.clone()]), ids(&notes[case.peer.clone()]));
        let offered = [offers(local), offers(peer)];

        let run = Run::new(local.url(), peer.url(), &filter, direction).knowing(self.state);
        let report = run.converges().await;
        counts_are_right(&report, direction, &here, &there, &what);
        let all: BTreeSet<_> = here.union(&there).cloned().collect();
        let (pulled, pushed) = (direction != Direction::Push, direction != Direction::Pull);
        assert_eq!(local.ids(&filter).await, if pulled { all.clone() } else { here }, "the local relay: {what}");
        assert_eq!(peer.ids(&filter).await, if pushed { all } else { there }, "the peer: {what}");
        if !pulled {
            assert_eq!(offers(local), offered[0], "something was sent to the local relay: {what}");
        }
        if !pushed {
            assert_eq!(offers(peer), offered[1], "something was sent to the peer: {what}");
        }

        let again = run.is_idle().await;
        assert_eq!(again.parked, 0, "{what}");
        assert_eq!(again.strategy, report.strategy, "{what}");
    }
}

fn notes(author: &Author, case: &Case) -> Vec<Event> {
    let note = |number: u64| author.note_saying(EPOCH + number % case.seconds, &number.to_string());
    (0..case.local.end.max(case.peer.end) as u64).map(note).collect()
}

fn counts_are_right(
    report: &Report,
    direction: Direction,
    here: &BTreeSet<String>,
    there: &BTreeSet<String>,
    what: &str,
) {
    let only = |a: &BTreeSet<String>, b| a.difference(b).count() as u64;
    let (local, peer) = (only(here, there), only(there, here));
    assert_eq!((report.local_only, report.peer_only), (local, peer), "{what}: {report:#?}");
    let moved = |wanted: bool, count| if wanted { (count, 0) } else { (0, count) };
    let (up, down) = (&report.uploaded, &report.downloaded);
    assert_eq!((up.stored, up.not_wanted), moved(direction != Direction::Pull, local), "{what}: {report:#?}");
    assert_eq!((down.stored, down.not_wanted), moved(direction != Direction::Push, peer), "{what}: {report:#?}");
    assert_eq!(report.bodies_received, up.stored + down.stored, "{what}: {report:#?}");
}

/// The events that a relay was offered, where it keeps a record.
fn offers(relay: &TestRelay) -> usize {
    match relay {
        TestRelay::Model(relay) => relay.offered().len(),
        _ => 0,
    }
}

/// Relays that speak NIP-77.
async fn with_nip77() -> Vec<TestRelay> {
    let mut relays = vec![TestRelay::in_process().await];
    relays.extend(TestRelay::strfry().await);
    relays
}

/// Relays that do not.
async fn without_nip77() -> Vec<TestRelay> {
    let quirks = Quirks {
        neg: Neg::Notice("ERROR: bad msg: unknown cmd".into()),
        info: Info::None,
        page_cap: Some(250),
        ..Quirks::default()
    };
    vec![TestRelay::nostr_relay().await, TestRelay::Model(ModelRelay::start(quirks).await)]
}

async fn every_pair(locals: Vec<TestRelay>, peers: Vec<TestRelay>, strategy: &str) {
    let directory = tempfile::tempdir().unwrap();
    let state = state(directory.path()).await;
    let per_pair = DIRECTIONS.len() * CASES.len() + 1;
    let mut pairs = 0_usize;
    for local in &locals {
        for peer in &peers {
            let first = u8::try_from(1 + pairs * per_pair).unwrap();
            let authors = first..first + u8::try_from(per_pair).unwrap();
            Pair { local, peer, state: &state, authors }.holds_for_every_direction().await;
            pairs += 1;
            let run = Run::new(local.url(), peer.url(), &nobody(), Direction::Both).knowing(&state);
            assert_eq!(run.is_idle().await.strategy, Some(strategy), "{} to {}", local.name(), peer.name());
        }
    }
}

fn nobody() -> Value {
    json!({"authors": [Author::new(250).pubkey()]})
}

#[tokio::test]
async fn negentropy_on_both_sides() {
    every_pair(with_nip77().await, with_nip77().await, "mediated").await;
}

#[tokio::test]
async fn negentropy_here_alone() {
    every_pair(with_nip77().await, without_nip77().await, "inventory").await;
}

#[tokio::test]
async fn negentropy_there_alone() {
    every_pair(without_nip77().await, with_nip77().await, "inventory").await;
}

#[tokio::test]
async fn negentropy_on_neither_side() {
    every_pair(without_nip77().await, without_nip77().await, "paged").await;
}
