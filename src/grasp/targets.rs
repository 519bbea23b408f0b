//! What is to be asked of which relay: what is wanted, turned round, less what is asked already.
//! Pure.
//!
//! Items are asked for in filters of [`MOST_VALUES`] at the most. An item stays in the filter that
//! it was put into, so that what is new makes a new filter, and only that one's history is
//! fetched. Until its history is complete a filter is pending, then it is confirmed.

use std::collections::{BTreeMap, BTreeSet};

use super::filters::{self, Item, Layer, MOST_VALUES};
use super::index::{Address, LeftOut, Repository, Wanted};
use super::place::Place;
use crate::nostr::{Filter, RelayUrl};

/// Filters of one layer that are not full, confirmed or pending, above which they are packed
/// anew. Packing what is pending begins its history again, so that is put off for longer.
const SPARE_CONFIRMED: usize = 8;
const SPARE_PENDING: usize = 16;

/// How much may be asked of one relay, and of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Discovered relays at once.
    pub relays: usize,
    /// Repositories at one relay.
    pub repositories: usize,
    /// Authors and maintainers at one relay.
    pub people: usize,
    /// Root events at one relay.
    pub roots: usize,
}

impl Bounds {
    /// With so many discovered relays at once. At each of them twenty filters of repositories and a
    /// hundred of roots, of each sort: more than any GRASP server known to us holds, and bearable
    /// as subscriptions where several filters share one.
    #[must_use]
    pub const fn with_relays(relays: usize) -> Self {
        Self { relays, repositories: 2000, people: 5000, roots: 10_000 }
    }
}

/// Which relays may be asked at all.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Where we are ourselves.
    pub own: BTreeSet<Place>,
    /// Relays that are asked for everything, always.
    pub bootstrap: Vec<RelayUrl>,
    /// Hosts that may be discovered; `None` for any.
    pub allow: Option<Vec<String>>,
    /// Hosts that are never discovered.
    pub deny: Vec<String>,
    /// Whether discovered relays may be at places that are not of the public internet.
    pub allow_private: bool,
    /// How much, of how many.
    pub bounds: Bounds,
}

/// Why a relay that is named is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// It is ourselves.
    #[error("it is our own")]
    Own,
    /// It is on the list, or not on the other.
    #[error("its host is denied, or is not allowed")]
    Denied,
    /// It is at a private place.
    #[error("it is at a private address")]
    Private,
    /// Discovered relays are not reached through Tor.
    #[error("it is an onion service, and discovered relays are reached without a proxy")]
    Onion,
}

impl Rules {
    fn refuses(&self, url: &RelayUrl) -> Option<Refusal> {
        let place = Place::of_relay(url)?;
        let listed = |hosts: &[String]| hosts.contains(&place.host());
        if self.own.contains(&place) {
            Some(Refusal::Own)
        } else if self.bootstrap.contains(url) {
            None
        } else if listed(&self.deny) || self.allow.as_ref().is_some_and(|allow| !listed(allow)) {
            Some(Refusal::Denied)
        } else if place.is_onion() {
            Some(Refusal::Onion)
        } else if place.is_private() && !self.allow_private {
            Some(Refusal::Private)
        } else {
            None
        }
    }
}

/// One filter to be followed at a relay, live and back to the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Its layer.
    pub layer: Layer,
    /// Which filter of that layer.
    pub number: usize,
    /// Which sort of it: a tag's name, or nothing.
    pub part: &'static str,
    /// What to ask.
    pub filter: Filter,
    /// The filters that, together, held at least as much before this one: if the history of each
    /// is complete, so is this one's.
    pub was: Vec<Filter>,
}

/// A filter's items.
#[derive(Clone, Debug, Default)]
struct Chunk {
    items: BTreeSet<Item>,
    /// The parts whose history is complete.
    confirmed: BTreeSet<&'static str>,
    /// What they were before the last update, if they were others.
    was: Vec<BTreeSet<Item>>,
}

impl Chunk {
    fn is_confirmed(&self, layer: Layer) -> bool {
        self.confirmed.len() == filters::of(layer, &self.items).len()
    }
}

/// One relay.
#[derive(Debug, Default)]
struct Target {
    chunks: BTreeMap<(Layer, usize), Chunk>,
}

/// All relays.
#[derive(Debug)]
pub struct Targets {
    rules: Rules,
    relays: BTreeMap<RelayUrl, Target>,
    refused: BTreeMap<RelayUrl, Refusal>,
    left_out: LeftOut,
}

impl Targets {
    /// The bootstrap relays, asked for announcements alone.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        let mut targets =
            Self { rules, relays: BTreeMap::new(), refused: BTreeMap::new(), left_out: LeftOut::default() };
        targets.update(&Wanted::default());
        targets
    }

    /// A relay was found to be our own: whatever is at its place is.
    pub fn is_own(&mut self, relay: &RelayUrl) {
        self.rules.own.extend(Place::of_relay(relay));
    }

    /// Takes over what is wanted now. Relays that nothing names any more are dropped, the
    /// bootstrap relays never.
    pub fn update(&mut self, wanted: &Wanted) {
        self.left_out = wanted.left_out;
        let chosen = self.choose(wanted);
        self.relays.retain(|url, _| chosen.contains_key(url));
        for (url, repositories) in chosen {
            let target = self.relays.entry(url).or_default();
            let items = items(wanted, &repositories, &self.rules.bounds, &mut self.left_out);
            target.update(&items);
        }
    }

    /// The history of one filter of a relay is complete.
    pub fn confirm(&mut self, relay: &RelayUrl, layer: Layer, number: usize, part: &'static str) {
        if let Some(chunk) = self.relays.get_mut(relay).and_then(|target| target.chunks.get_mut(&(layer, number))) {
            chunk.confirmed.insert(part);
        }
    }

    /// The relays to be asked.
    pub fn relays(&self) -> impl Iterator<Item = &RelayUrl> {
        self.relays.keys()
    }

    /// Whether a relay is one that was given, not discovered.
    #[must_use]
    pub fn is_bootstrap(&self, relay: &RelayUrl) -> bool {
        self.rules.bootstrap.contains(relay)
    }

    /// What is to be asked of a relay.
    #[must_use]
    pub fn subscriptions(&self, relay: &RelayUrl) -> Vec<Subscription> {
        let Some(target) = self.relays.get(relay) else { return Vec::new() };
        let first = filters::announcements().map(|filter| Subscription {
            layer: Layer::Announcements,
            number: 1,
            part: "",
            filter,
            was: Vec::new(),
        });
        let rest = target.chunks.iter().flat_map(|(&(layer, number), chunk)| {
            let was: Vec<_> = chunk.was.iter().map(|items| filters::of(layer, items)).collect();
            filters::of(layer, &chunk.items).into_iter().map(move |(part, filter)| {
                let was = was.iter().flatten().filter(|(other, _)| *other == part);
                Subscription { layer, number, part, filter, was: was.map(|(_, filter)| filter.clone()).collect() }
            })
        });
        first.into_iter().chain(rest).collect()
    }

    /// The relays that are named and not asked, and why.
    #[must_use]
    pub const fn refused(&self) -> &BTreeMap<RelayUrl, Refusal> {
        &self.refused
    }

    /// What did not fit a bound.
    #[must_use]
    pub const fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// The relays to be asked, with their repositories: those that the most repositories name, and
    /// of equals those that are asked already.
    fn choose<'w>(&mut self, wanted: &'w Wanted) -> BTreeMap<RelayUrl, Repositories<'w>> {
        let mut named: BTreeMap<&RelayUrl, Repositories<'w>> = BTreeMap::new();
        for (address, repository) in &wanted.repositories {
            for url in &repository.relays {
                named.entry(url).or_default().push((address, repository));
            }
        }
        let all = || wanted.repositories.iter().collect::<Repositories<'w>>();
        let mut chosen = BTreeMap::new();
        self.refused.clear();
        for url in &self.rules.bootstrap {
            match self.rules.refuses(url) {
                Some(refusal) => drop(self.refused.insert(url.clone(), refusal)),
                None => drop(chosen.insert(url.clone(), all())),
            }
        }
        let mut discovered = Vec::new();
        for (url, repositories) in named {
            match self.rules.refuses(url) {
                Some(refusal) => drop(self.refused.insert(url.clone(), refusal)),
                None if chosen.contains_key(url) => {}
                None => discovered.push((url, repositories)),
            }
        }
        let is_new = |url: &RelayUrl| !self.relays.contains_key(url);
        discovered.sort_by(|(a, of_a), (b, of_b)| {
            of_b.len().cmp(&of_a.len()).then_with(|| is_new(a).cmp(&is_new(b))).then_with(|| a.cmp(b))
        });
        self.left_out.relays += discovered.len().saturating_sub(self.rules.bounds.relays);
        discovered.truncate(self.rules.bounds.relays);
        chosen.extend(discovered.into_iter().map(|(url, repositories)| (url.clone(), repositories)));
        chosen
    }
}

type Repositories<'w> = Vec<(&'w Address, &'w Repository)>;

/// What is to be asked of a relay that is named by these repositories. Every relay is asked for
/// the states and people of all that is wanted: its first layer has brought them already, perhaps
/// before the local relay knew what they belong to.
fn items(
    wanted: &Wanted,
    repositories: &[(&Address, &Repository)],
    bounds: &Bounds,
    left: &mut LeftOut,
) -> BTreeSet<Item> {
    let mut items = BTreeSet::new();
    let (mut people, mut roots) = (BTreeSet::new(), BTreeSet::new());
    left.repositories += wanted.repositories.len().saturating_sub(bounds.repositories);
    for (address, repository) in repositories.iter().take(bounds.repositories) {
        items.insert(Item::Repository((*address).clone()));
        roots.extend(repository.roots.iter());
    }
    let people_of = |(address, repository): (&'_ Address, &'_ Repository)| {
        let states = repository.people.iter().map(|person| (address.identifier.clone(), *person));
        states.collect::<Vec<_>>()
    };
    for (identifier, person) in wanted.repositories.iter().take(bounds.repositories).flat_map(people_of) {
        items.insert(Item::State(identifier, person));
        people.insert(person);
    }
    left.roots += roots.len().saturating_sub(bounds.roots);
    for (root, author) in roots.into_iter().take(bounds.roots) {
        items.insert(Item::Root(*root));
        people.insert(*author);
    }
    left.people += people.len().saturating_sub(bounds.people);
    items.extend(people.into_iter().take(bounds.people).map(Item::Person));
    items
}

impl Target {
    fn update(&mut self, wanted: &BTreeSet<Item>) {
        self.let_go(wanted);
        let work = self.new_work(wanted);
        self.add(work);
        self.consolidate();
    }

    /// Takes out what is no longer wanted.
    fn let_go(&mut self, wanted: &BTreeSet<Item>) {
        for chunk in self.chunks.values_mut() {
            chunk.was.clear();
            if !chunk.items.is_subset(wanted) {
                let left = chunk.items.intersection(wanted).cloned().collect();
                chunk.was.push(std::mem::replace(&mut chunk.items, left));
            }
        }
        self.chunks.retain(|_, chunk| !chunk.items.is_empty());
    }

    /// Wanted, less what is pending, less what is confirmed. The one place where this is decided.
    fn new_work(&self, wanted: &BTreeSet<Item>) -> BTreeSet<Item> {
        let asked: BTreeSet<&Item> = self.chunks.values().flat_map(|chunk| &chunk.items).collect();
        wanted.iter().filter(|item| !asked.contains(item)).cloned().collect()
    }

    /// Puts items into filters of their own.
    fn add(&mut self, items: BTreeSet<Item>) {
        let mut by_layer: BTreeMap<Layer, Vec<Item>> = BTreeMap::new();
        for item in items {
            by_layer.entry(item.layer()).or_default().push(item);
        }
        for (layer, items) in by_layer {
            for items in items.chunks(MOST_VALUES) {
                let items = items.iter().cloned().collect();
                self.insert(layer, Chunk { items, ..Chunk::default() });
            }
        }
    }

    fn insert(&mut self, layer: Layer, chunk: Chunk) {
        // The lowest that is free: names of jobs are few, and come again.
        let number = (1..).find(|number| !self.chunks.contains_key(&(layer, *number))).unwrap_or_default();
        self.chunks.insert((layer, number), chunk);
    }

    /// Packs filters that are not full into fewer, where there are many.
    fn consolidate(&mut self) {
        for layer in [Layer::Repositories, Layer::States, Layer::People, Layer::Roots] {
            for (confirmed, spare) in [(true, SPARE_CONFIRMED), (false, SPARE_PENDING)] {
                let loose: Vec<_> = self
                    .chunks
                    .iter()
                    .filter(|((of, _), chunk)| {
                        *of == layer && chunk.items.len() < MOST_VALUES && chunk.is_confirmed(layer) == confirmed
                    })
                    .map(|(key, _)| *key)
                    .collect();
                if loose.len() > spare {
                    self.pack(layer, &loose);
                }
            }
        }
    }

    fn pack(&mut self, layer: Layer, loose: &[(Layer, usize)]) {
        let loose: Vec<Chunk> = loose.iter().filter_map(|key| self.chunks.remove(key)).collect();
        // In both cases all are alike: confirmed, or pending.
        let confirmed = loose.iter().map(|chunk| chunk.confirmed.clone()).reduce(|a, b| &a & &b).unwrap_or_default();
        let items: Vec<Item> = loose.iter().flat_map(|chunk| chunk.items.iter().cloned()).collect();
        for items in items.chunks(MOST_VALUES) {
            let items: BTreeSet<Item> = items.iter().cloned().collect();
            let held = loose.iter().filter(|chunk| !chunk.items.is_disjoint(&items));
            // What is new in this update has no history, whatever it is packed with.
            let was =
                held.flat_map(|chunk| if chunk.was.is_empty() { vec![chunk.items.clone()] } else { chunk.was.clone() });
            let was = was.collect();
            self.insert(layer, Chunk { items, confirmed: confirmed.clone(), was });
        }
    }
}

#[cfg(test)]
mod tests;
