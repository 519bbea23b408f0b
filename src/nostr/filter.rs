//! A NIP-01 filter that can only say what relays understand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value, json};

use super::{Event, EventId, PublicKey, Timestamp};

/// What is wrong with a filter, and at which key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Not a JSON object.
    #[error("expected an object")]
    NotAnObject,
    /// A key that NIP-01 does not have. Passing it on would widen the filter where a relay
    /// ignores it.
    #[error("unknown key {0:?} in a filter")]
    UnknownKey(String),
    /// `limit`, which would hide events from a comparison.
    #[error("`limit` cannot be used here: a comparison covers all matching events")]
    Limit,
    /// An empty list, which some relays read as "match everything".
    #[error("{0:?} is empty: relays disagree whether that matches nothing or everything")]
    EmptyList(String),
    /// A value of the wrong type.
    #[error("{key:?}: expected {expected}")]
    Expected {
        /// The key it stands under.
        key: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// `since` after `until`.
    #[error("`since` is after `until`: nothing can match")]
    NoTime,
}

impl FilterError {
    /// The key at fault, where it is one key.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::UnknownKey(key) | Self::EmptyList(key) | Self::Expected { key, .. } => Some(key),
            Self::Limit => Some("limit"),
            Self::NoTime => Some("since"),
            Self::NotAnObject => None,
        }
    }
}

/// The letter of a single-letter tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TagName(u8);

impl TagName {
    /// From an ASCII letter.
    #[must_use]
    pub const fn new(letter: char) -> Option<Self> {
        if letter.is_ascii_alphabetic() { Some(Self(letter as u8)) } else { None }
    }
}

impl fmt::Display for TagName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", char::from(self.0))
    }
}

/// A filter without `limit`. No list in it is empty; a missing list matches everything. Two
/// filters that say the same thing compare equal and print the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Filter {
    ids: Option<BTreeSet<EventId>>,
    authors: Option<BTreeSet<PublicKey>>,
    kinds: Option<BTreeSet<u16>>,
    tags: BTreeMap<TagName, BTreeSet<String>>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

impl Filter {
    /// Everything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a filter from JSON.
    ///
    /// # Errors
    /// When it says something that relays would read in different ways.
    pub fn from_value(value: &Value) -> Result<Self, FilterError> {
        let mut filter = Self::default();
        for (key, value) in value.as_object().ok_or(FilterError::NotAnObject)? {
            match key.as_str() {
                "ids" => filter.ids = Some(list(key, value, "hex event ids", hex)?),
                "authors" => filter.authors = Some(list(key, value, "hex public keys", hex)?),
                "kinds" => {
                    let kind = |value: &Value| value.as_u64().and_then(|kind| u16::try_from(kind).ok());
                    filter.kinds = Some(list(key, value, "kind numbers from 0 to 65535", kind)?);
                }
                "since" => filter.since = Some(time(key, value)?),
                "until" => filter.until = Some(time(key, value)?),
                "limit" => return Err(FilterError::Limit),
                _ => {
                    let name = tag_key(key).ok_or_else(|| FilterError::UnknownKey(key.clone()))?;
                    let text = |value: &Value| value.as_str().map(str::to_owned);
                    filter.tags.insert(name, list(key, value, "texts", text)?);
                }
            }
        }
        if filter.since > filter.until && filter.until.is_some() {
            return Err(FilterError::NoTime);
        }
        Ok(filter)
    }

    /// The same filter for these ids alone; `ids` must not be empty.
    #[must_use]
    pub fn of_ids(ids: impl IntoIterator<Item = EventId>) -> Self {
        Self { ids: Some(ids.into_iter().collect()), ..Self::default() }
    }

    /// All events of one kind.
    #[must_use]
    pub fn of_kind(kind: u16) -> Self {
        Self { kinds: Some(BTreeSet::from([kind])), ..Self::default() }
    }

    /// Narrowed to these kinds; `None` when no kind is left.
    #[must_use]
    pub fn narrow_kinds(&self, kinds: impl IntoIterator<Item = u16>) -> Option<Self> {
        let kinds: BTreeSet<_> =
            kinds.into_iter().filter(|kind| self.kinds.as_ref().is_none_or(|own| own.contains(kind))).collect();
        (!kinds.is_empty()).then(|| Self { kinds: Some(kinds), ..self.clone() })
    }

    /// Narrowed to these authors; `None` when none is left.
    #[must_use]
    pub fn narrow_authors(&self, authors: impl IntoIterator<Item = PublicKey>) -> Option<Self> {
        let authors: BTreeSet<_> =
            authors.into_iter().filter(|author| self.authors.as_ref().is_none_or(|own| own.contains(author))).collect();
        (!authors.is_empty()).then(|| Self { authors: Some(authors), ..self.clone() })
    }

    /// Narrowed to a span of time, both ends inclusive; `None` when no second is left.
    #[must_use]
    pub fn narrow_time(&self, since: Option<Timestamp>, until: Option<Timestamp>) -> Option<Self> {
        let since = self.since.max(since);
        let until = match (self.until, until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let some = !(until.is_some() && since > until);
        some.then(|| Self { since, until, ..self.clone() })
    }

    /// Ending at another second, later or earlier, or not at all.
    #[must_use]
    pub fn with_until(&self, until: Option<Timestamp>) -> Self {
        Self { until, ..self.clone() }
    }

    /// With these values for a tag besides what it says already; `values` must not be empty.
    #[must_use]
    pub fn with_tag(mut self, name: TagName, values: impl IntoIterator<Item = String>) -> Self {
        self.tags.insert(name, values.into_iter().collect());
        self
    }

    /// Split in two by its longest list; `None` when no list has two values.
    #[must_use]
    pub fn split(&self) -> Option<(Self, Self)> {
        fn halves<T: Ord + Clone>(list: &BTreeSet<T>) -> (BTreeSet<T>, BTreeSet<T>) {
            let mut values = list.iter().cloned();
            let low = values.by_ref().take(list.len() / 2).collect();
            (low, values.collect())
        }
        let (mut low, mut high) = (self.clone(), self.clone());
        let len = |list: Option<usize>| list.unwrap_or_default();
        let ids = len(self.ids.as_ref().map(BTreeSet::len));
        let authors = len(self.authors.as_ref().map(BTreeSet::len));
        let kinds = len(self.kinds.as_ref().map(BTreeSet::len));
        let tags = self.tags.iter().max_by_key(|(_, values)| values.len());
        let longest = ids.max(authors).max(kinds).max(len(tags.map(|(_, values)| values.len())));
        if longest < 2 {
            return None;
        }
        if let Some(list) = self.ids.as_ref().filter(|list| list.len() == longest) {
            let (a, b) = halves(list);
            (low.ids, high.ids) = (Some(a), Some(b));
        } else if let Some(list) = self.authors.as_ref().filter(|list| list.len() == longest) {
            let (a, b) = halves(list);
            (low.authors, high.authors) = (Some(a), Some(b));
        } else if let Some((name, list)) = tags.filter(|(_, list)| list.len() == longest) {
            let (a, b) = halves(list);
            low.tags.insert(*name, a);
            high.tags.insert(*name, b);
        } else if let Some(list) = &self.kinds {
            let (a, b) = halves(list);
            (low.kinds, high.kinds) = (Some(a), Some(b));
        }
        Some((low, high))
    }

    /// The kinds it asks for.
    #[must_use]
    pub fn kinds(&self) -> Option<&BTreeSet<u16>> {
        self.kinds.as_ref()
    }

    /// The authors it asks for.
    #[must_use]
    pub fn authors(&self) -> Option<&BTreeSet<PublicKey>> {
        self.authors.as_ref()
    }

    /// Whether it asks for values of this tag.
    #[must_use]
    pub fn has_tag(&self, name: TagName) -> bool {
        self.tags.contains_key(&name)
    }

    /// The first second it matches.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        self.since
    }

    /// The last second it matches.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// The filter with at least one condition: some relays read one without any as "nothing", so a
    /// second that no event was made in is left out.
    #[must_use]
    pub fn conditioned(self) -> Self {
        if self == Self::new() { self.narrow_time(Some(1), None).unwrap_or(self) } else { self }
    }

    /// Whether only time, or nothing at all, limits it.
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.ids.is_none() && self.authors.is_none() && self.kinds.is_none() && self.tags.is_empty()
    }

    /// Whether an event is one it asks for.
    #[must_use]
    pub fn matches(&self, event: &Event) -> bool {
        let tag = |(name, values): (&TagName, &BTreeSet<String>)| {
            let letter = char::from(name.0);
            event.tags().any(|tag| {
                tag[0].len() == 1
                    && tag[0].starts_with(letter)
                    && tag.get(1).is_some_and(|value| values.contains(value))
            })
        };
        self.since.is_none_or(|since| event.created_at() >= since)
            && self.until.is_none_or(|until| event.created_at() <= until)
            && self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&event.kind()))
            && self.authors.as_ref().is_none_or(|authors| authors.contains(&event.pubkey()))
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&event.id()))
            && self.tags.iter().all(tag)
    }

    /// As JSON, with a `limit` where one is given (for REQ only: NIP-77 takes none).
    #[must_use]
    pub fn to_value(&self, limit: Option<usize>) -> Value {
        fn texts<T: fmt::Display>(list: &BTreeSet<T>) -> Value {
            list.iter().map(ToString::to_string).collect()
        }
        let mut map = Map::new();
        if let Some(ids) = &self.ids {
            map.insert("ids".into(), texts(ids));
        }
        if let Some(authors) = &self.authors {
            map.insert("authors".into(), texts(authors));
        }
        if let Some(kinds) = &self.kinds {
            map.insert("kinds".into(), json!(kinds));
        }
        for (name, values) in &self.tags {
            map.insert(format!("#{name}"), texts(values));
        }
        for (key, time) in [("since", self.since), ("until", self.until)] {
            if let Some(time) = time {
                map.insert(key.into(), time.into());
            }
        }
        if let Some(limit) = limit {
            map.insert("limit".into(), limit.into());
        }
        Value::Object(map)
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        Self::from_value(&serde_json::from_str(text).map_err(|_| FilterError::NotAnObject)?)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_value(None).fmt(f)
    }
}

fn tag_key(key: &str) -> Option<TagName> {
    let mut letters = key.strip_prefix('#')?.chars();
    let name = TagName::new(letters.next()?)?;
    letters.next().is_none().then_some(name)
}

fn hex<T: FromStr>(value: &Value) -> Option<T> {
    value.as_str()?.parse().ok()
}

fn time(key: &str, value: &Value) -> Result<Timestamp, FilterError> {
    let expected = "seconds since the Unix epoch";
    value.as_u64().ok_or_else(|| FilterError::Expected { key: key.to_owned(), expected })
}

fn list<T: Ord>(
    key: &str,
    value: &Value,
    expected: &'static str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<BTreeSet<T>, FilterError> {
    let wrong = || FilterError::Expected { key: key.to_owned(), expected };
    let values = value.as_array().ok_or_else(wrong)?;
    if values.is_empty() {
        return Err(FilterError::EmptyList(key.to_owned()));
    }
    values.iter().map(|value| read(value).ok_or_else(wrong)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Filter, FilterError> {
        text.parse()
    }

    #[test]
    fn what_would_widen_a_filter_is_refused() {
        let key = |key: &str| FilterError::UnknownKey(key.into());
        assert_eq!(read(r##"{"&t":["a"]}"##), Err(key("&t")));
        assert_eq!(read(r##"{"#title":["a"]}"##), Err(key("#title")));
        assert_eq!(read(r#"{"search":"a"}"#), Err(key("search")));
        assert_eq!(read(r#"{"limit":5}"#), Err(FilterError::Limit));
        for empty in ["ids", "authors", "kinds", "#t"] {
            assert_eq!(read(&format!("{{\"{empty}\":[]}}")), Err(FilterError::EmptyList(empty.into())));
        }
        assert!(matches!(read(r#"{"kinds":[70000]}"#), Err(FilterError::Expected { .. })));
        assert!(matches!(read(r#"{"authors":["abc"]}"#), Err(FilterError::Expected { .. })));
        assert_eq!(read(r#"{"since":5,"until":4}"#), Err(FilterError::NoTime));
        assert_eq!(read("[]"), Err(FilterError::NotAnObject));
    }

    #[test]
    fn narrowing_never_widens() {
        let filter = read(r#"{"kinds":[1,5],"since":10,"until":20}"#).unwrap();
        assert_eq!(filter.narrow_kinds([5, 62]).unwrap().to_string(), r#"{"kinds":[5],"since":10,"until":20}"#);
        assert_eq!(filter.narrow_kinds([7]), None);
        assert_eq!(
            filter.narrow_time(Some(5), Some(12)).unwrap().to_string(),
            r#"{"kinds":[1,5],"since":10,"until":12}"#
        );
        assert_eq!(filter.narrow_time(Some(21), None), None);
        assert_eq!(Filter::new().narrow_kinds([5]).unwrap().to_string(), r#"{"kinds":[5]}"#);
    }

    #[test]
    fn the_longest_list_is_split() {
        let filter = read(r##"{"kinds":[1,5],"#t":["a","b","c"]}"##).unwrap();
        let (low, high) = filter.split().unwrap();
        assert_eq!(low.to_string(), r##"{"#t":["a"],"kinds":[1,5]}"##);
        assert_eq!(high.to_string(), r##"{"#t":["b","c"],"kinds":[1,5]}"##);
        assert_eq!(read(r#"{"kinds":[1]}"#).unwrap().split(), None);
    }
}
