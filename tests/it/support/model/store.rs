//! The events a scripted relay holds, by the rules of NIP-01, NIP-09 and NIP-62.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Deserialize;
use serde_json::Value;

use crate::support::events::Event;

/// Newest first, of one second the lowest id first.
type Place = (Reverse<u64>, String);

#[derive(Default)]
pub struct Store {
    /// The relay's own URL: a request to vanish names it, or all relays.
    url: String,
    events: BTreeMap<Place, Event>,
    places: HashMap<String, Place>,
    /// The one event of a replaceable kind or an address.
    current: HashMap<String, String>,
    /// Ids and addresses that an author asked to delete, and up to when.
    deleted: HashMap<(String, String), u64>,
    /// Authors who asked to vanish, and up to when.
    vanished: HashMap<String, u64>,
}

/// What became of an event.
#[derive(Debug, PartialEq, Eq)]
pub enum Added {
    Stored,
    /// Not for keeping; passed on to live subscriptions.
    PassedOn,
    Duplicate,
    Refused(&'static str),
}

impl Store {
    pub fn new(url: &str) -> Self {
        Self { url: url.to_owned(), ..Self::default() }
    }

    pub fn add(&mut self, event: &Event) -> Added {
        if matches!(event.kind, 20_000..=29_999) {
            return Added::PassedOn;
        }
        if self.places.contains_key(&event.id) {
            return Added::Duplicate;
        }
        if self.is_deleted(event) {
            return Added::Refused("deleted: user requested deletion");
        }
        if event.kind != 62 && self.vanished.get(&event.pubkey).is_some_and(|until| event.created_at <= *until) {
            return Added::Refused("blocked: user requested to vanish");
        }
        if let Some(address) = event.address() {
            if let Some(held) = self.current.get(&address) {
                if self.places[held] < place(event) {
                    return Added::Refused("replaced: have newer event");
                }
                self.remove(&held.clone());
            }
            self.current.insert(address, event.id.clone());
        }
        match event.kind {
            5 => self.delete(event),
            62 => self.vanish(event),
            _ => {}
        }
        self.places.insert(event.id.clone(), place(event));
        self.events.insert(place(event), event.clone());
        Added::Stored
    }

    /// Drops an event without any trace, as a relay does that cleans up.
    pub fn remove(&mut self, id: &str) {
        if let Some(event) = self.places.remove(id).and_then(|place| self.events.remove(&place))
            && let Some(address) = event.address()
        {
            self.current.remove(&address);
        }
    }

    /// What matches, newest first; `limit` is the caller's business.
    pub fn query<'s>(&'s self, filter: &'s Filter) -> Box<dyn Iterator<Item = &'s Event> + 's> {
        if let Some(ids) = &filter.ids {
            let mut places: Vec<_> = ids.iter().filter_map(|id| self.places.get(id)).collect();
            places.sort();
            return Box::new(places.into_iter().map(|place| &self.events[place]).filter(|event| filter.matches(event)));
        }
        let newest = (Reverse(filter.until.unwrap_or(u64::MAX)), String::new());
        let oldest = filter.since.unwrap_or(0);
        let range = self.events.range(newest..).map(|(_, event)| event);
        Box::new(range.take_while(move |event| event.created_at >= oldest).filter(|event| filter.matches(event)))
    }

    fn is_deleted(&self, event: &Event) -> bool {
        let covers = |name: &str| {
            let until = self.deleted.get(&(event.pubkey.clone(), name.to_owned()));
            until.is_some_and(|until| event.created_at <= *until)
        };
        event.kind != 5 && (covers(&event.id) || event.address().is_some_and(|address| covers(&address)))
    }

    fn delete(&mut self, request: &Event) {
        // A request for an id has no time; a request for an address reaches up to its own.
        let ids = request.tag_values("e").map(|id| (id, u64::MAX));
        let addresses = request.tag_values("a").map(|address| (address, request.created_at));
        for (name, until) in ids.chain(addresses) {
            let entry = self.deleted.entry((request.pubkey.clone(), name.to_owned())).or_default();
            *entry = until.max(*entry);
        }
        self.sweep(&request.pubkey);
    }

    fn vanish(&mut self, request: &Event) {
        if !request.tag_values("relay").any(|relay| relay == "ALL_RELAYS" || relay == self.url) {
            return;
        }
        self.vanished.insert(request.pubkey.clone(), request.created_at);
        self.sweep(&request.pubkey);
    }

    /// Removes what the author's requests cover.
    fn sweep(&mut self, author: &str) {
        let vanished = self.vanished.get(author).copied();
        let gone = |event: &&Event| {
            let vanished = event.kind != 62 && vanished.is_some_and(|until| event.created_at <= until);
            event.pubkey == author && (vanished || self.is_deleted(event))
        };
        let ids: Vec<_> = self.events.values().filter(gone).map(|event| event.id.clone()).collect();
        ids.iter().for_each(|id| self.remove(id));
    }
}

fn place(event: &Event) -> Place {
    (Reverse(event.created_at), event.id.clone())
}

/// A NIP-01 filter.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Filter {
    ids: Option<HashSet<String>>,
    authors: Option<HashSet<String>>,
    kinds: Option<HashSet<u16>>,
    since: Option<u64>,
    pub until: Option<u64>,
    pub limit: Option<usize>,
    /// `#e` and the like.
    #[serde(flatten)]
    tags: HashMap<String, HashSet<String>>,
}

impl Filter {
    /// `None` for what a relay cannot read.
    pub fn read(value: &Value) -> Option<Self> {
        let filter: Self = serde_json::from_value(value.clone()).ok()?;
        filter.tags.keys().all(|name| name.starts_with('#')).then_some(filter)
    }

    pub fn matches(&self, event: &Event) -> bool {
        self.ids.as_ref().is_none_or(|ids| ids.contains(&event.id))
            && self.authors.as_ref().is_none_or(|authors| authors.contains(&event.pubkey))
            && self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&event.kind))
            && self.since.is_none_or(|since| since <= event.created_at)
            && self.until.is_none_or(|until| event.created_at <= until)
            && self.tags.iter().all(|(name, values)| event.tag_values(&name[1..]).any(|value| values.contains(value)))
    }
}
