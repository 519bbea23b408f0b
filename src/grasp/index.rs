//! What is wanted, folded from events that the local relay has accepted (NIP-34). Pure, and the
//! order in which events arrive does not matter: deletions and versions are weighed when it is
//! asked what is wanted, not when they come.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;

use url::Url;

use super::place::Place;
use crate::nostr::{Entity, Event, EventId, PublicKey, RelayUrl, Timestamp, kind};

/// A repository's announcement (NIP-34).
pub const ANNOUNCEMENT: u16 = 30617;
/// Patch, pull request and issue: what a discussion begins with.
pub const ROOTS: [u16; 3] = [1617, 1618, 1621];

/// Relays that one announcement may name: a GRASP server's announcements name a handful.
const RELAYS_PER_REPOSITORY: usize = 20;
/// Maintainers that one announcement may name.
const MAINTAINERS_PER_REPOSITORY: usize = 50;
/// Root events followed of one repository, the newest: the largest known to us have a few
/// thousand.
const ROOTS_PER_REPOSITORY: usize = 5000;
/// Repositories that one root event may belong to: a pull request names its own and a fork or two.
const REPOSITORIES_PER_ROOT: usize = 10;
/// The longest identifier: a hundred of them, in a filter of ours, stay within one message.
const MOST_IDENTIFIER: usize = 256;
/// The longest URL of a relay.
const MOST_URL: usize = 256;
/// Announcements, root events and deletions held, each: 50 MB at the most.
const MOST_HELD: usize = 200_000;

/// The address of a repository: `30617:<pubkey>:<identifier>`, whose identifier may hold colons.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Whose it is.
    pub author: PublicKey,
    /// Its identifier (`d`).
    pub identifier: String,
}

/// Not the address of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 30617:<pubkey>:<identifier>")]
pub struct AddressError;

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let mut parts = text.splitn(3, ':');
        let (Some("30617"), Some(author), Some(identifier)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(AddressError);
        };
        let author = author.parse().map_err(|_| AddressError)?;
        Ok(Self { author, identifier: identifier.to_owned() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ANNOUNCEMENT}:{}:{}", self.author, self.identifier)
    }
}

/// What is wanted of one repository, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repository {
    /// The relays that its announcement names, in its order.
    pub relays: Vec<RelayUrl>,
    /// Its author and maintainers.
    pub people: BTreeSet<PublicKey>,
    /// Its root events, and who wrote them.
    pub roots: BTreeMap<EventId, PublicKey>,
}

/// What did not fit a bound, and is not followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Relays that announcements name, or that are too many in all.
    pub relays: usize,
    /// Repositories.
    pub repositories: usize,
    /// Root events.
    pub roots: usize,
    /// Authors and maintainers.
    pub people: usize,
    /// Events that were not looked at, because too many are held.
    pub events: usize,
}

impl LeftOut {
    /// All of it, each with its word.
    #[must_use]
    pub const fn counts(&self) -> [(&'static str, usize); 5] {
        [
            ("relays", self.relays),
            ("repositories", self.repositories),
            ("roots", self.roots),
            ("people", self.people),
            ("events", self.events),
        ]
    }
}

/// All that is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The repositories that list our service.
    pub repositories: BTreeMap<Address, Repository>,
    /// What the bounds left out.
    pub left_out: LeftOut,
}

/// Ordered by age: of two that are equally new, the one with the lower id counts (NIP-01).
type Version = (Timestamp, Reverse<EventId>);

/// The newest version of an announcement.
#[derive(Debug)]
struct Announcement {
    version: Version,
    /// `None` where it does not list our service, or not any more.
    listed: Option<Listed>,
}

#[derive(Debug)]
struct Listed {
    repository: Repository,
    left_out: LeftOut,
}

#[derive(Debug)]
struct Root {
    author: PublicKey,
    created_at: Timestamp,
    repositories: Vec<Address>,
}

/// The events of the local relay, as far as they say what is wanted.
#[derive(Debug)]
pub struct Index {
    service: Place,
    announcements: BTreeMap<Address, Announcement>,
    roots: BTreeMap<EventId, Root>,
    /// Ids that their authors asked to delete.
    deleted: BTreeSet<(PublicKey, EventId)>,
    /// Announcements that their authors asked to delete, up to when.
    withdrawn: BTreeMap<Address, Timestamp>,
    /// Authors who asked to vanish from here, up to when.
    vanished: BTreeMap<PublicKey, Timestamp>,
    not_held: usize,
}

impl Index {
    /// Nothing yet. `service` is where announcements have to say that the repository is.
    #[must_use]
    pub const fn new(service: Place) -> Self {
        Self {
            service,
            announcements: BTreeMap::new(),
            roots: BTreeMap::new(),
            deleted: BTreeSet::new(),
            withdrawn: BTreeMap::new(),
            vanished: BTreeMap::new(),
            not_held: 0,
        }
    }

    /// Where announcements have to say that a repository is.
    #[must_use]
    pub const fn service(&self) -> &Place {
        &self.service
    }

    /// Takes an event into account that the local relay has accepted. The same one may come again.
    pub fn fold(&mut self, event: &Event) {
        match event.kind() {
            ANNOUNCEMENT => self.announce(event),
            kind if ROOTS.contains(&kind) => self.root(event),
            kind::DELETION => self.delete(event),
            kind::VANISH => self.vanish(event),
            _ => {}
        }
    }

    /// What is wanted now.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        let mut left_out = LeftOut { events: self.not_held, ..LeftOut::default() };
        let mut repositories = BTreeMap::new();
        for (address, announcement) in &self.announcements {
            let Some(listed) = announcement.listed.as_ref().filter(|_| self.stands(address, announcement)) else {
                continue;
            };
            left_out.relays += listed.left_out.relays;
            left_out.people += listed.left_out.people;
            repositories.insert(address.clone(), listed.repository.clone());
        }
        let mut roots: HashMap<&Address, Vec<(Version, PublicKey)>> = HashMap::new();
        for (id, root) in &self.roots {
            if self.is_gone(*id, root.author, root.created_at) {
                continue;
            }
            for address in root.repositories.iter().filter(|address| repositories.contains_key(*address)) {
                roots.entry(address).or_default().push(((root.created_at, Reverse(*id)), root.author));
            }
        }
        for (address, mut roots) in roots {
            if roots.len() > ROOTS_PER_REPOSITORY {
                left_out.roots += roots.len() - ROOTS_PER_REPOSITORY;
                roots.sort_unstable_by(|a, b| b.cmp(a));
                roots.truncate(ROOTS_PER_REPOSITORY);
            }
            if let Some(repository) = repositories.get_mut(address) {
                repository.roots = roots.into_iter().map(|((_, Reverse(id)), author)| (id, author)).collect();
            }
        }
        Wanted { repositories, left_out }
    }

    fn announce(&mut self, event: &Event) {
        let address =
            Address { author: event.pubkey(), identifier: event.tag_values("d").next().unwrap_or_default().to_owned() };
        let version = (event.created_at(), Reverse(event.id()));
        let known = self.announcements.get(&address);
        if known.is_some_and(|known| known.version >= version) {
            return;
        }
        if known.is_none() && self.announcements.len() >= MOST_HELD || address.identifier.len() > MOST_IDENTIFIER {
            self.not_held += 1;
            return;
        }
        let listed = self.listed(event);
        self.announcements.insert(address, Announcement { version, listed });
    }

    /// What an announcement says, if it lists our service both as a relay and as a place to clone
    /// from.
    fn listed(&self, event: &Event) -> Option<Listed> {
        let is_cloned = values(event, "clone").any(|url| is_clone_of(url, &self.service));
        let relays = || values(event, "relays").filter(|url| url.len() <= MOST_URL);
        let relays = || relays().filter_map(|url| url.parse::<RelayUrl>().ok());
        let is_relay = relays().any(|url| Place::of_relay(&url).as_ref() == Some(&self.service));
        if !is_cloned || !is_relay {
            return None;
        }
        let (mut named, mut left_out) = (Vec::new(), LeftOut::default());
        for url in relays() {
            if named.contains(&url) {
                continue;
            }
            if named.len() < RELAYS_PER_REPOSITORY {
                named.push(url);
            } else {
                left_out.relays += 1;
            }
        }
        let mut people = BTreeSet::from([event.pubkey()]);
        for key in values(event, "maintainers").filter_map(|key| key.parse().ok()) {
            if people.len() <= MAINTAINERS_PER_REPOSITORY {
                people.insert(key);
            } else if !people.contains(&key) {
                left_out.people += 1;
            }
        }
        Some(Listed { repository: Repository { relays: named, people, roots: BTreeMap::new() }, left_out })
    }

    fn root(&mut self, event: &Event) {
        let links = ["a", "A", "q"].into_iter().flat_map(|name| event.tag_values(name));
        let links: BTreeSet<Address> = links.filter_map(|link| link.parse().ok()).collect();
        if links.is_empty() || self.roots.contains_key(&event.id()) {
            return;
        }
        if self.roots.len() >= MOST_HELD {
            self.not_held += 1;
            return;
        }
        let root = Root {
            author: event.pubkey(),
            created_at: event.created_at(),
            repositories: links.into_iter().take(REPOSITORIES_PER_ROOT).collect(),
        };
        self.roots.insert(event.id(), root);
    }

    fn delete(&mut self, event: &Event) {
        let author = event.pubkey();
        for id in event.tag_values("e").filter_map(|id| id.parse().ok()) {
            // What is too much is followed until the whole history is read again.
            if self.deleted.len() < MOST_HELD {
                self.deleted.insert((author, id));
            }
        }
        // Nobody deletes another author's events.
        let own = event.tag_values("a").filter_map(|address| address.parse().ok());
        for address in own.filter(|address: &Address| address.author == author) {
            if self.withdrawn.len() < MOST_HELD {
                let until = self.withdrawn.entry(address).or_default();
                *until = event.created_at().max(*until);
            }
        }
    }

    fn vanish(&mut self, event: &Event) {
        let is_ours = |relay: &str| {
            relay == "ALL_RELAYS"
                || relay.parse().is_ok_and(|url: RelayUrl| Place::of_relay(&url).as_ref() == Some(&self.service))
        };
        if event.tag_values("relay").any(is_ours) && self.vanished.len() < MOST_HELD {
            let until = self.vanished.entry(event.pubkey()).or_default();
            *until = event.created_at().max(*until);
        }
    }

    fn stands(&self, address: &Address, announcement: &Announcement) -> bool {
        let (created_at, Reverse(id)) = announcement.version;
        self.withdrawn.get(address).is_none_or(|until| created_at > *until)
            && !self.is_gone(id, address.author, created_at)
    }

    fn is_gone(&self, id: EventId, author: PublicKey, created_at: Timestamp) -> bool {
        self.deleted.contains(&(author, id)) || self.vanished.get(&author).is_some_and(|until| created_at <= *until)
    }
}

/// All values of the tags with this name: `relays`, `clone` and `maintainers` hold several.
fn values<'e>(event: &'e Event, name: &'e str) -> impl Iterator<Item = &'e str> {
    event.tags().filter(move |tag| tag[0] == name).flat_map(|tag| tag[1..].iter().map(String::as_str))
}

/// Whether a URL is `http(s)://<service>/<npub>/<identifier>.git`.
fn is_clone_of(url: &str, service: &Place) -> bool {
    let Ok(url) = Url::parse(url.trim()) else { return false };
    let mut segments = url.path_segments().into_iter().flatten();
    let path = (segments.next(), segments.next(), segments.next());
    matches!(url.scheme(), "http" | "https")
        && Place::of(&url).as_ref() == Some(service)
        && matches!(path, (Some(author), Some(name), None)
            if matches!(Entity::parse(author), Some(Entity::Author(_))) && name.len() > 4 && name.ends_with(".git"))
}

#[cfg(test)]
mod tests;
