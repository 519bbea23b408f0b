//! The three layers of filters that a relay is asked: announcements, what names our repositories,
//! what names their root events. Pure.

use std::collections::BTreeSet;
use std::fmt;

use super::index::{ANNOUNCEMENT, Address};
use crate::nostr::{EventId, Filter, PublicKey, TagName, kind};

/// A repository's state (NIP-34).
const STATE: u16 = 30618;
/// A user's list of GRASP servers (NIP-34).
const GRASP_LIST: u16 = 10317;

/// Values in one list of a filter: what relays are known to take.
pub const MOST_VALUES: usize = 100;

/// What a filter asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// Announcements of whatever repository, as relays cannot be asked for those that list us.
    Announcements,
    /// What links to repositories.
    Repositories,
    /// Announcements and states of repositories, by everyone who maintains them.
    States,
    /// What authors deleted, whether they vanished, and which servers they use.
    People,
    /// What links to root events.
    Roots,
}

impl Layer {
    /// The word it has in the names of jobs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Announcements => "announcements",
            Self::Repositories => "repositories",
            Self::States => "states",
            Self::People => "people",
            Self::Roots => "roots",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing to be asked for. Each stands in exactly one filter of each sort that its layer has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// What links to this repository.
    Repository(Address),
    /// The announcement and the state with this identifier, by this author.
    State(String, PublicKey),
    /// What this author deleted.
    Person(PublicKey),
    /// What links to this event.
    Root(EventId),
}

impl Item {
    /// Its layer.
    #[must_use]
    pub const fn layer(&self) -> Layer {
        match self {
            Self::Repository(_) => Layer::Repositories,
            Self::State(..) => Layer::States,
            Self::Person(_) => Layer::People,
            Self::Root(_) => Layer::Roots,
        }
    }
}

/// The first layer.
#[must_use]
pub fn announcements() -> Option<Filter> {
    Filter::new().narrow_kinds([ANNOUNCEMENT, STATE, GRASP_LIST])
}

/// The filters for items of one layer, [`MOST_VALUES`] at the most, each with a word that tells it
/// from the others. A filter of two tags asks for what has both: where one of them is enough,
/// there is a filter for each.
#[must_use]
pub fn of(layer: Layer, items: &BTreeSet<Item>) -> Vec<(&'static str, Filter)> {
    let addresses = || items.iter().filter_map(|item| if let Item::Repository(at) = item { Some(at) } else { None });
    let roots = || items.iter().filter_map(|item| if let Item::Root(id) = item { Some(id) } else { None });
    match layer {
        Layer::Announcements => announcements().map(|filter| ("", filter)).into_iter().collect(),
        Layer::Repositories => tagged(["a", "A", "q"], || addresses().map(ToString::to_string)),
        Layer::Roots => tagged(["e", "E", "q"], || roots().map(ToString::to_string)),
        Layer::States => {
            let states = || items.iter().filter_map(|i| if let Item::State(d, by) = i { Some((d, *by)) } else { None });
            let filter = Filter::new()
                .narrow_kinds([ANNOUNCEMENT, STATE])
                .and_then(|filter| filter.narrow_authors(states().map(|(_, by)| by)))
                .zip(TagName::new('d'))
                .map(|(filter, d)| filter.with_tag(d, states().map(|(d, _)| d.clone())));
            filter.map(|filter| ("", filter)).into_iter().collect()
        }
        Layer::People => {
            let people = items.iter().filter_map(|item| if let Item::Person(key) = item { Some(*key) } else { None });
            let filter = Filter::new().narrow_kinds([kind::DELETION, kind::VANISH, GRASP_LIST]);
            filter.and_then(|filter| filter.narrow_authors(people)).map(|filter| ("", filter)).into_iter().collect()
        }
    }
}

fn tagged<I: Iterator<Item = String>>(names: [&'static str; 3], values: impl Fn() -> I) -> Vec<(&'static str, Filter)> {
    let of = |name: &'static str| {
        let tag = name.chars().next().and_then(TagName::new)?;
        // A filter without values would match everything.
        values().next().is_some().then(|| (name, Filter::new().with_tag(tag, values())))
    };
    names.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layer_asks_as_the_protocol_says() {
        let key = |n: u8| PublicKey::new([n; 32]);
        let show = |layer, items: Vec<Item>| {
            let filters = of(layer, &items.into_iter().collect());
            filters.into_iter().map(|(word, filter)| format!("{word} {filter}")).collect::<Vec<_>>()
        };
        let (one, two) = ("01".repeat(32), "02".repeat(32));
        assert_eq!(show(Layer::Announcements, Vec::new()), [r#" {"kinds":[10317,30617,30618]}"#]);
        let address = Address { author: key(1), identifier: "a:b".into() };
        assert_eq!(
            show(Layer::Repositories, vec![Item::Repository(address)]),
            ["a", "A", "q"].map(|tag| format!(r##"{tag} {{"#{tag}":["30617:{one}:a:b"]}}"##))
        );
        assert_eq!(
            show(Layer::Roots, vec![Item::Root(EventId::new([2; 32]))]),
            ["e", "E", "q"].map(|tag| format!(r##"{tag} {{"#{tag}":["{two}"]}}"##))
        );
        assert_eq!(
            show(Layer::States, vec![Item::State("a:b".into(), key(1)), Item::State("a:b".into(), key(2))]),
            [format!(r##" {{"#d":["a:b"],"authors":["{one}","{two}"],"kinds":[30617,30618]}}"##)]
        );
        assert_eq!(
            show(Layer::People, vec![Item::Person(key(1))]),
            [format!(r#" {{"authors":["{one}"],"kinds":[5,62,10317]}}"#)]
        );
        for layer in [Layer::Repositories, Layer::States, Layer::People, Layer::Roots] {
            assert!(of(layer, &BTreeSet::new()).is_empty(), "nothing never matches everything");
        }
    }
}
