//! What is to be said about a config file, and at which place in it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use super::spans::{Place, Spans};

/// The keys that lead to a value, such as `peers[0].filters[1].#p`. The empty path is the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Path(String);

impl Path {
    /// The value under a key.
    pub fn key(&self, key: &str) -> Self {
        Self(if self.0.is_empty() { key.to_owned() } else { format!("{self}.{key}") })
    }

    /// A value in a list, from 0.
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{self}[{index}]"))
    }

    /// What this value stands in.
    pub fn parent(&self) -> Option<Self> {
        if self.0.is_empty() {
            return None;
        }
        Some(Self(self.0[..self.0.rfind(['.', '[']).unwrap_or_default()].to_owned()))
    }

    fn holds(&self, other: &str) -> bool {
        other
            .strip_prefix(self.0.as_str())
            .is_some_and(|rest| self.0.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Something about one place in a config file: an error, or a warning. It never repeats a value
/// that could be a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the file, as it was given.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The keys that lead there, such as `peers[0].url`; empty for the file as a whole.
    pub path: String,
    /// What is to be said.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Everything that is wrong with a config file, in the order of the file, one line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ConfigErrors(pub Vec<Finding>);

/// Gathers errors and warnings while a file is read.
pub(super) struct Findings<'a> {
    file: &'a str,
    spans: Spans,
    /// Keys that are missing because they are misspelt.
    excused: Vec<Path>,
    errors: Vec<Finding>,
    warnings: Vec<Finding>,
}

impl<'a> Findings<'a> {
    /// None so far.
    pub fn new(file: &'a str, spans: Spans) -> Self {
        Self { file, spans, excused: Vec::new(), errors: Vec::new(), warnings: Vec::new() }
    }

    /// An error in a value. A second one in the same value follows from the first, and is dropped.
    pub fn error(&mut self, at: &Path, message: impl Into<String>) {
        if !self.excused.contains(at) && self.errors.iter().all(|error| error.path != at.0) {
            self.errors.push(self.finding(self.spans.value(at), at, message.into()));
        }
    }

    /// An error at a place.
    pub fn error_at(&mut self, place: Place, at: &Path, message: impl Into<String>) {
        self.errors.push(self.finding(place, at, message.into()));
    }

    /// An error in a key.
    pub fn error_in_key(&mut self, at: &Path, message: impl Into<String>) {
        self.error_at(self.spans.key(at), at, message);
    }

    /// Does not count a key as missing: it is there, misspelt.
    pub fn excuse(&mut self, at: Path) {
        self.excused.push(at);
    }

    /// A warning about a value.
    pub fn warn(&mut self, at: &Path, message: impl Into<String>) {
        self.warnings.push(self.finding(self.spans.value(at), at, message.into()));
    }

    /// A warning about a place.
    pub fn warn_at(&mut self, place: Place, message: impl Into<String>) {
        self.warnings.push(self.finding(place, &Path::default(), message.into()));
    }

    /// Whether nothing is wrong with a value, nor with anything in it.
    pub fn is_clean(&self, at: &Path) -> bool {
        !self.errors.iter().any(|error| at.holds(&error.path)) && !self.excused.contains(at)
    }

    /// Reads a text, or notes why it cannot be read.
    pub fn parse<T: FromStr<Err: fmt::Display>>(&mut self, at: &Path, text: &str) -> Option<T> {
        text.parse().map_err(|error: T::Err| self.error(at, error.to_string())).ok()
    }

    /// Reads a time span that is not 0, such as `5m`.
    pub fn duration(&mut self, at: &Path, text: &str) -> Option<Duration> {
        match humantime::parse_duration(text) {
            Ok(span) if !span.is_zero() => Some(span),
            _ => {
                self.error(at, "expected a time span above 0, such as 30s, 5m or 1h 30m");
                None
            }
        }
    }

    /// The value, if there were no errors, and the warnings.
    pub fn finish<T>(mut self, value: Option<T>) -> Result<(T, Vec<Finding>), ConfigErrors> {
        let order = |finding: &Finding| (finding.line, finding.column);
        self.errors.sort_by_key(order);
        self.warnings.sort_by_key(order);
        // Two peers may share a filter.
        self.warnings.dedup();
        match value {
            Some(value) if self.errors.is_empty() => Ok((value, self.warnings)),
            _ => Err(ConfigErrors(self.errors)),
        }
    }

    fn finding(&self, place: Place, at: &Path, message: String) -> Finding {
        Finding { file: self.file.to_owned(), line: place.line, column: place.column, path: at.0.clone(), message }
    }
}
