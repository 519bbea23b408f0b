//! A relay in memory, with the habits of real ones, and a driver for a reconciliation of two.

use std::collections::{BTreeSet, HashMap, VecDeque};

use negentropy::{Id, Negentropy, NegentropyStorageVector};

use super::super::*;
use crate::job_spec::StrategyChoice;
use crate::nostr::{EventId, PublicKey};
use crate::outcome::BySide;

pub const NOW: u64 = 1_700_000_000;

/// What an event is to a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    pub at: u64,
    pub id: EventId,
    pub kind: u16,
    pub author: u8,
}

impl Item {
    pub fn new(at: u64, id: EventId) -> Self {
        Self { at, id, kind: 1, author: 0 }
    }

    fn matches(&self, filter: &Filter) -> bool {
        filter.since().is_none_or(|since| self.at >= since)
            && filter.until().is_none_or(|until| self.at <= until)
            && filter.kinds().is_none_or(|kinds| kinds.contains(&self.kind))
            && filter.authors().is_none_or(|authors| authors.contains(&author(self.author)))
    }
}

pub fn author(n: u8) -> PublicKey {
    PublicKey::new([n; 32])
}

/// An id that shares its first half with others of its family. The rest is random, as fingerprints
/// are sums: small numbers would come to the same.
pub fn id(family: u8, n: u32) -> EventId {
    let mut id = [family; 32];
    fastrand::Rng::with_seed(u64::from(n)).fill(&mut id[16..]);
    EventId::new(id)
}

pub fn random_id(rng: &mut fastrand::Rng) -> EventId {
    let mut id = [0; 32];
    rng.fill(&mut id);
    EventId::new(id)
}

/// How it answers a REQ.
#[derive(Clone, Debug)]
pub struct Habits {
    /// The most events it sends.
    pub cap: usize,
    pub ignores_limit: bool,
    pub ignores_until: bool,
    /// Ties by lowest id first, as NIP-01 says, or the other way round.
    pub lowest_first: bool,
    /// It says whether there is more (NIP-67).
    pub hints: bool,
    /// It sends an event that nobody asked for with every page.
    pub chatty: bool,
}

impl Default for Habits {
    fn default() -> Self {
        Self {
            cap: usize::MAX,
            ignores_limit: false,
            ignores_until: false,
            lowest_first: true,
            hints: false,
            chatty: false,
        }
    }
}

/// How it answers a NEG-OPEN for more than it takes.
#[derive(Clone, Copy, Debug)]
pub struct MaxSync {
    pub events: usize,
    pub says_max: bool,
    pub says_found: bool,
}

pub type Responder = fn(&[Item], &[u8]) -> Vec<u8>;

#[derive(Default)]
pub struct Relay {
    pub items: BTreeSet<Item>,
    pub habits: Habits,
    pub frame: u64,
    pub max_sync: Option<MaxSync>,
    /// Refusals of the next queries, after this many answers.
    pub refusals: VecDeque<NegRefusal>,
    pub refuses_after: usize,
    pub responder: Option<Responder>,
    /// A longer answer does not get through, and the connection is gone.
    pub longest_answer: Option<usize>,
    pub queries: usize,
    pub pages: usize,
    pub bytes: usize,
    pub longest_query: usize,
    storages: HashMap<String, NegentropyStorageVector>,
}

impl Relay {
    pub fn new(items: impl IntoIterator<Item = Item>) -> Self {
        Self { items: items.into_iter().collect(), ..Self::default() }
    }

    pub fn answer(&mut self, question: &Question) -> Answer {
        match question {
            Question::Neg { filter, message } => self.reconcile(filter, message),
            Question::Page { filter, limit } => Answer::Page(self.page(filter, *limit)),
        }
    }

    fn reconcile(&mut self, filter: &Filter, query: &[u8]) -> Answer {
        if self.queries >= self.refuses_after
            && let Some(refusal) = self.refusals.pop_front()
        {
            return Answer::Refused(refusal);
        }
        let items = || self.items.iter().filter(|item| item.matches(filter));
        if let Some(max) = self.max_sync {
            let found = items().count();
            if found > max.events {
                let said = |says: bool, number: usize| says.then_some(number as u64);
                return Answer::Refused(NegRefusal::TooBig {
                    max: said(max.says_max, max.events),
                    found: said(max.says_found, found),
                });
            }
        }
        self.queries += 1;
        let answer = match self.responder {
            Some(responder) => responder(&items().copied().collect::<Vec<_>>(), query),
            None => {
                let storage = self.storages.entry(filter.to_string()).or_insert_with(|| storage(items()));
                Negentropy::borrowed(storage, self.frame).unwrap().reconcile(query).unwrap()
            }
        };
        if self.longest_answer.is_some_and(|longest| answer.len() > longest) {
            return Answer::Refused(NegRefusal::Broken(PeerText::new("message too long")));
        }
        self.bytes += query.len() + answer.len();
        self.longest_query = self.longest_query.max(query.len());
        Answer::Neg(answer)
    }

    fn page(&mut self, filter: &Filter, limit: usize) -> Page {
        self.pages += 1;
        let habits = &self.habits;
        let all = Filter::new().narrow_time(filter.since(), None).unwrap();
        let asked = if habits.ignores_until { &all } else { filter };
        let mut items: Vec<_> = self.items.iter().filter(|item| item.matches(asked)).collect();
        items.sort_by(|a, b| {
            let ties = if habits.lowest_first { a.id.cmp(&b.id) } else { b.id.cmp(&a.id) };
            b.at.cmp(&a.at).then(ties)
        });
        let matching = items.len();
        items.truncate(habits.cap.min(if habits.ignores_limit { usize::MAX } else { limit }));
        let hint = if items.len() == matching { EoseHint::Finish } else { EoseHint::More };
        Page {
            received: items.len() + usize::from(habits.chatty && !items.is_empty()),
            heads: items
                .into_iter()
                .filter(|item| item.matches(filter))
                .map(|item| Head { created_at: item.at, id: item.id })
                .collect(),
            hint: habits.hints.then_some(hint),
        }
    }
}

fn storage<'i>(items: impl Iterator<Item = &'i Item>) -> NegentropyStorageVector {
    let mut storage = NegentropyStorageVector::new();
    for item in items {
        storage.insert(item.at, Id::from_byte_array(*item.id.as_bytes())).unwrap();
    }
    storage.seal().unwrap();
    storage
}

pub fn setup(choice: StrategyChoice) -> Setup {
    Setup {
        filter: Filter::new(),
        choice,
        now: NOW,
        speaks_nip77: BySide { local: true, peer: true },
        page_limit: BySide { local: 500, peer: 500 },
        max_query: BySide { local: 60_000, peer: 60_000 },
        inventory_events: 100_000,
    }
}

/// What a reconciliation came to.
#[derive(Debug)]
pub struct Outcome {
    pub found: Vec<(Side, EventId)>,
    pub strategy: &'static str,
    pub gaps: Vec<crate::outcome::Gap>,
    pub refused: BySide<bool>,
    pub shown: BySide<bool>,
    /// Questions that were under way at both sides at once.
    pub concurrent: usize,
}

/// Runs a reconciliation to its end. Of two questions under way, chance decides which is answered
/// first.
pub fn run(setup: Setup, local: &mut Relay, peer: &mut Relay) -> Result<Outcome, ReconcileError> {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut reconciliation = Reconciliation::new(setup);
    let mut asked: BySide<Option<Question>> = BySide::default();
    let mut found = Vec::new();
    let mut concurrent = 0;
    for _ in 0..10_000_000_u64 {
        match reconciliation.poll() {
            Some(Action::Ask(side, question)) => {
                assert!(asked[side].is_none(), "two questions to one side");
                asked[side] = Some(question);
            }
            Some(Action::Found { on, id }) => found.push((on, id)),
            Some(Action::Done) => {
                return Ok(Outcome {
                    found,
                    strategy: reconciliation.strategy(),
                    gaps: reconciliation.gaps().to_vec(),
                    refused: BySide {
                        local: reconciliation.refusals().local.is_some(),
                        peer: reconciliation.refusals().peer.is_some(),
                    },
                    shown: BySide {
                        local: reconciliation.has_shown(Side::Local),
                        peer: reconciliation.has_shown(Side::Peer),
                    },
                    concurrent,
                });
            }
            None => {
                concurrent += usize::from(asked.local.is_some() && asked.peer.is_some());
                let first = if rng.bool() { Side::Local } else { Side::Peer };
                let side = if asked[first].is_some() { first } else { first.other() };
                let question = asked[side].take().expect("the reconciliation waits for nothing");
                let answer = match side {
                    Side::Local => local.answer(&question),
                    Side::Peer => peer.answer(&question),
                };
                reconciliation.handle(side, answer)?;
            }
        }
    }
    panic!("the reconciliation does not end");
}

/// Runs a reconciliation and demands exactly the difference of what is in scope, each id once.
#[track_caller]
pub fn run_exact(setup: Setup, local: &mut Relay, peer: &mut Relay) -> Outcome {
    let expected = difference(&setup, local, peer);
    let mut outcome = run(setup, local, peer).expect("honest relays");
    outcome.found.sort();
    assert!(outcome.found == expected, "found {} of {}", outcome.found.len(), expected.len());
    outcome
}

pub fn difference(setup: &Setup, local: &Relay, peer: &Relay) -> Vec<(Side, EventId)> {
    let scope = |item: &&Item| item.matches(&setup.filter) && item.at <= setup.now + 86_400;
    let only = |side, own: &Relay, other: &Relay| {
        let items: Vec<_> = own.items.difference(&other.items).filter(scope).map(|item| (side, item.id)).collect();
        items
    };
    let mut all = only(Side::Local, local, peer);
    all.extend(only(Side::Peer, peer, local));
    all.sort();
    all
}
