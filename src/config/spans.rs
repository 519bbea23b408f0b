//! Where each key and value of a YAML text stands. The values themselves are read elsewhere.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, Span};

use super::finding::Path;

/// A place in a text, both from 1; the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub line: usize,
    pub column: usize,
}

impl Place {
    /// Where a text begins.
    pub const START: Self = Self { line: 1, column: 1 };
}

impl From<Span> for Place {
    fn from(span: Span) -> Self {
        Self { line: span.start.line(), column: span.start.col() + 1 }
    }
}

/// The places of a text's keys and values, and the keys that are there twice.
#[derive(Default)]
pub(super) struct Spans {
    keys: HashMap<Path, Place>,
    values: HashMap<Path, Place>,
    /// Each key that stands there again, and where.
    pub duplicates: Vec<(Path, Place)>,
}

enum Frame {
    /// A mapping, and the key whose value comes next.
    Map(Path, Option<String>),
    /// A list, and the number of its next value.
    List(Path, usize),
}

impl Spans {
    /// Reads a text that is known to be YAML. What this parser does not understand is left
    /// without a place.
    pub fn read(text: &str) -> Self {
        let mut spans = Self::default();
        let mut open: Vec<Frame> = Vec::new();
        for event in Parser::new_from_str(text) {
            let Ok((event, span)) = event else { break };
            match event {
                Event::Scalar(text, ..) => {
                    spans.node(&mut open, span.into(), Some(&text));
                }
                Event::Alias(_) => {
                    spans.node(&mut open, span.into(), None);
                }
                Event::MappingStart(..) => {
                    let path = spans.node(&mut open, span.into(), None);
                    open.push(Frame::Map(path, None));
                }
                Event::SequenceStart(..) => {
                    let path = spans.node(&mut open, span.into(), None);
                    open.push(Frame::List(path, 0));
                }
                Event::MappingEnd | Event::SequenceEnd => {
                    open.pop();
                }
                _ => {}
            }
        }
        spans
    }

    /// Where a value stands, or else the nearest thing around it (an alias has one place).
    pub fn value(&self, at: &Path) -> Place {
        self.nearest(&self.values, at)
    }

    /// Where a key stands, or else the nearest thing around it.
    pub fn key(&self, at: &Path) -> Place {
        self.nearest(&self.keys, at)
    }

    fn nearest(&self, places: &HashMap<Path, Place>, at: &Path) -> Place {
        if let Some(place) = places.get(at) {
            return *place;
        }
        let mut around = at.parent();
        while let Some(path) = around {
            if let Some(place) = self.values.get(&path) {
                return *place;
            }
            around = path.parent();
        }
        Place::START
    }

    /// Takes the next key or value; its path, if it is a value.
    fn node(&mut self, open: &mut [Frame], place: Place, text: Option<&str>) -> Path {
        let path = match open.last_mut() {
            None => Path::default(),
            Some(Frame::List(path, next)) => {
                *next += 1;
                path.index(*next - 1)
            }
            Some(Frame::Map(path, key)) => match key.take() {
                Some(key) => path.key(&key),
                None => {
                    // An alias as a key has no text here; its value keeps the place of the mapping.
                    let text = text.unwrap_or("*");
                    let at = path.key(text);
                    *key = Some(text.to_owned());
                    if self.keys.contains_key(&at) {
                        self.duplicates.push((at.clone(), place));
                    } else {
                        self.keys.insert(at.clone(), place);
                    }
                    return at;
                }
            },
        };
        self.values.entry(path.clone()).or_insert(place);
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_have_places() {
        let spans = Spans::read("local:\n  url: ws://h\npeers:\n- name: \"ä\"\n  filters: [{kinds: [1, x]}]\n");
        let path = |keys: &str| match keys {
            "url" => Path::default().key("local").key("url"),
            "kind" => Path::default().key("peers").index(0).key("filters").index(0).key("kinds").index(1),
            _ => Path::default().key("peers").index(0).key("nothing").index(3),
        };
        assert_eq!(spans.key(&path("url")), Place { line: 2, column: 3 });
        assert_eq!(spans.value(&path("url")), Place { line: 2, column: 8 });
        assert_eq!(spans.value(&path("kind")), Place { line: 5, column: 25 });
        assert_eq!(spans.value(&path("unknown")), Place { line: 4, column: 3 });
        assert!(spans.duplicates.is_empty());
    }

    #[test]
    fn a_key_that_is_there_twice_is_found() {
        let spans = Spans::read("a: 1\nb: {c: 1, c: 2}\na: 3\n");
        let places: Vec<_> = spans.duplicates.iter().map(|(path, place)| (path.to_string(), place.line)).collect();
        assert_eq!(places, [("b.c".to_owned(), 2), ("a".to_owned(), 3)]);
    }
}
