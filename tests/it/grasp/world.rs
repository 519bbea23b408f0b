//! What repositories look like (NIP-34), and what a GRASP relay takes (GRASP-01).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use nostr::nips::nip19::ToBech32;

use crate::support::events::{Author, Event};
use crate::support::model::{ModelRelay, Quirks, Verdict};

/// Who writes issues and comments.
pub const READERS: [u8; 5] = [201, 202, 203, 204, 205];

/// A repository, as its owner announces it.
#[derive(Clone)]
pub struct Repository {
    pub owner: u8,
    pub d: String,
    pub relays: Vec<String>,
    pub maintainers: Vec<String>,
}

impl Repository {
    pub fn new(owner: u8, d: &str, relays: &[&str]) -> Self {
        let relays = relays.iter().map(|url| (*url).to_owned()).collect();
        Self { owner, d: d.to_owned(), relays, maintainers: Vec::new() }
    }

    pub fn address(&self) -> String {
        format!("30617:{}:{}", Author::new(self.owner).pubkey(), self.d)
    }

    /// Its announcement, at `service` among others.
    pub fn announcement(&self, service: &str, at: u64) -> Event {
        let owner = Author::new(self.owner);
        let npub = nostr::key::PublicKey::from_hex(&owner.pubkey()).unwrap().to_bech32().unwrap();
        let clone = format!("{}/{npub}/{}.git", service.replacen("ws", "http", 1), self.d);
        let relays: Vec<&str> = ["relays", service].into_iter().chain(self.relays.iter().map(String::as_str)).collect();
        let maintainers: Vec<&str> =
            ["maintainers"].into_iter().chain(self.maintainers.iter().map(String::as_str)).collect();
        owner.event(30617, at, &[&["d", &self.d], &["clone", &clone], &relays, &maintainers], "")
    }

    pub fn state(&self, author: u8, at: u64) -> Event {
        Author::new(author).addressable(30618, &self.d, at, "")
    }

    /// An issue, patch or pull request, which links to it by the given tag.
    pub fn root(&self, reader: u8, kind: u16, tag: &str, at: u64) -> Event {
        Author::new(reader).event(kind, at, &[&[tag, &self.address()], &["subject", "s"]], &format!("root {at}"))
    }
}

/// A comment on a root event (NIP-22).
pub fn comment(reader: u8, root: &Event, at: u64) -> Event {
    Author::new(reader).event(1111, at, &[&["E", &root.id], &["e", &root.id]], &format!("comment {at}"))
}

/// A comment on a comment.
pub fn reply(reader: u8, root: &Event, comment: &Event, at: u64) -> Event {
    Author::new(reader).event(1111, at, &[&["E", &root.id], &["e", &comment.id]], &format!("reply {at}"))
}

/// A status of a root event: open, applied, closed or draft.
pub fn status(reader: u8, root: &Event, at: u64) -> Event {
    let kind = 1630 + u16::try_from(at % 4).unwrap();
    Author::new(reader).event(kind, at, &[&["e", &root.id, "", "root"]], &format!("status {at}"))
}

/// A note that quotes a root event.
pub fn quote(reader: u8, root: &Event, at: u64) -> Event {
    Author::new(reader).event(1, at, &[&["q", &root.id]], &format!("quote {at}"))
}

/// What a GRASP relay has taken, and so what it takes: announcements that list it, states by who
/// maintains a repository, lists of those it knows, and what tags anything it took.
pub struct Policy {
    service: String,
    held: HashSet<String>,
    owners: HashSet<String>,
    /// Who may say what the state of an identifier is.
    maintainers: HashMap<String, HashSet<String>>,
}

impl Policy {
    pub fn new(service: &str) -> Self {
        let service = service.trim_start_matches("ws://").to_owned();
        Self { service, held: HashSet::new(), owners: HashSet::new(), maintainers: HashMap::new() }
    }

    /// Whether it takes an event now.
    pub fn takes(&mut self, event: &Event) -> bool {
        let all = |name: &str| -> Vec<&String> {
            event.tags.iter().filter(|tag| tag[0] == name).flat_map(|tag| &tag[1..]).collect()
        };
        let d = event.tag_values("d").next().unwrap_or_default().to_owned();
        let taken = match event.kind {
            30617 => {
                all("clone").iter().any(|url| url.starts_with(&format!("http://{}/", self.service)))
                    && all("relays").iter().any(|url| url.trim_end_matches('/') == format!("ws://{}", self.service))
            }
            30618 => self.maintainers.get(&d).is_some_and(|by| by.contains(&event.pubkey)),
            10317 => self.owners.contains(&event.pubkey),
            _ => {
                ["a", "A", "q", "e", "E"].iter().any(|name| event.tag_values(name).any(|link| self.held.contains(link)))
            }
        };
        if taken {
            self.held.insert(event.id.clone());
            self.held.extend(event.address());
            if event.kind == 30617 {
                self.owners.insert(event.pubkey.clone());
                let by = self.maintainers.entry(d).or_default();
                by.insert(event.pubkey.clone());
                by.extend(all("maintainers").into_iter().cloned());
            }
        }
        taken
    }
}

/// A relay with that policy.
pub async fn grasp_relay() -> ModelRelay {
    let relay = ModelRelay::start(Quirks::default()).await;
    let policy = Mutex::new(Policy::new(relay.url()));
    relay.change(|quirks| {
        quirks.on_event = Some(Arc::new(move |event| {
            if policy.lock().unwrap().takes(event) {
                Verdict::Usual
            } else {
                Verdict::Refuse("blocked: refers to nothing here".to_owned())
            }
        }));
    });
    relay
}

/// The ids of what such a relay holds in the end, in whatever order it was offered all of these.
pub fn accepted<'e>(service: &str, events: impl IntoIterator<Item = &'e Event>) -> BTreeSet<String> {
    let mut policy = Policy::new(service);
    let mut left: Vec<&Event> = events.into_iter().collect();
    let mut taken: Vec<&Event> = Vec::new();
    loop {
        let (now, later): (Vec<&Event>, Vec<&Event>) = left.into_iter().partition(|event| policy.takes(event));
        left = later;
        if now.is_empty() {
            break;
        }
        taken.extend(now);
    }
    // Of each address the newest version is left.
    let mut newest: HashMap<String, &Event> = HashMap::new();
    for event in &taken {
        if let Some(address) = event.address() {
            let held = newest.entry(address).or_insert(event);
            if (event.created_at, &held.id) > (held.created_at, &event.id) {
                *held = event;
            }
        }
    }
    let is_left = |event: &&Event| event.address().is_none_or(|address| newest[&address].id == event.id);
    taken.into_iter().filter(is_left).map(|event| event.id.clone()).collect()
}
