//! Which module may use which (DESIGN.md, section 2): arrows point down only. Reads `src/`, runs
//! nothing. Tests within `src/` may use what they like.

use std::fs;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    Vocabulary,
    Machine,
    Edge,
    Driver,
    Entry,
}

/// Every module at the top of `src/`, from top to bottom: a new one has to be given its place.
const MODULES: [(&str, Layer); 23] = [
    ("lib", Layer::Entry),
    ("main", Layer::Entry),
    ("cli", Layer::Entry),
    ("app", Layer::Entry),
    ("job", Layer::Driver),
    ("live", Layer::Driver),
    ("grasp", Layer::Driver),
    ("gateway", Layer::Driver),
    ("http", Layer::Driver),
    ("notify", Layer::Driver),
    ("relay", Layer::Edge),
    ("state", Layer::Edge),
    ("metrics", Layer::Edge),
    ("clock", Layer::Edge),
    ("reconcile", Layer::Machine),
    ("transfer", Layer::Machine),
    ("schedule", Layer::Machine),
    ("health", Layer::Machine),
    ("config", Layer::Vocabulary),
    ("job_state", Layer::Vocabulary),
    ("outcome", Layer::Vocabulary),
    ("job_spec", Layer::Vocabulary),
    ("nostr", Layer::Vocabulary),
];

/// Machines in the folders of drivers and edges.
const PURE_FILES: [&str; 13] = [
    "gateway/forwarded.rs",
    "gateway/inventory.rs",
    "gateway/message.rs",
    "gateway/names.rs",
    "gateway/refusal.rs",
    "gateway/responder.rs",
    "grasp/filters.rs",
    "grasp/index.rs",
    "grasp/place.rs",
    "grasp/targets.rs",
    "live/packing.rs",
    "relay/auth.rs",
    "relay/session.rs",
];

/// Where errors may be of any type.
const MAY_USE_ANYHOW: [&str; 3] = ["app", "cli", "main"];

#[test]
fn arrows_point_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut faults = Vec::new();
    for path in sources(&root) {
        let file = path.strip_prefix(&root).unwrap().to_str().unwrap();
        faults.extend(check(file, &fs::read_to_string(&path).unwrap()));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// What is wrong with one source file, named relative to `src/`.
fn check(file: &str, text: &str) -> Vec<String> {
    let module = file.split(['/', '.']).next().unwrap();
    let Some(place) = place_of(module) else {
        return vec![format!("{file}: module {module} has no place in tests/it/layering.rs")];
    };
    if file.ends_with("tests.rs") || file.contains("/tests/") {
        return Vec::new();
    }
    let layer = if PURE_FILES.contains(&file) { Layer::Machine } else { MODULES[place].1 };
    let paths = Reader::new(file, text).read();
    // `use crate::nostr;` gives our own module the crate's name.
    let shadows_nostr = paths.iter().any(|path| path == &["crate", "nostr"]);
    let mut faults = Vec::new();
    for path in paths {
        let names = |krate: &str| path.len() > 1 && path[0] == krate;
        let fault = if path.len() > 1 && path[0] == "crate" {
            // What is not a module is defined in `lib.rs`, which holds the map alone.
            place_of(&path[1])
                .is_some_and(|to| to != place && !may_use(layer, place, to))
                .then_some("points up or aside")
        } else if names("anyhow") && !MAY_USE_ANYHOW.contains(&module) {
            Some("is for main, cli and app")
        } else if names("nostr") && module != "nostr" && !shadows_nostr {
            Some("is the nostr crate, which only src/nostr names")
        } else if layer == Layer::Machine && is_impure(&path) {
            Some("has no place in a machine")
        } else {
            None
        };
        faults.extend(fault.map(|fault| format!("{file}: {} {fault}", path.join("::"))));
    }
    faults
}

fn place_of(module: &str) -> Option<usize> {
    MODULES.iter().position(|(name, _)| *name == module)
}

/// Whether a file of this layer, in the module at place `from`, may use another module.
fn may_use(layer: Layer, from: usize, to: usize) -> bool {
    let (name, below) = MODULES[to];
    match (layer, below) {
        (Layer::Driver, Layer::Driver) | (Layer::Machine, Layer::Machine) => false,
        // What every edge reads, and what every task is given.
        (Layer::Edge, Layer::Edge) => matches!(name, "clock" | "metrics"),
        (Layer::Entry, Layer::Entry) | (Layer::Vocabulary, Layer::Vocabulary) => from < to,
        _ => below < layer,
    }
}

/// Whether a path leads to a socket, a clock or chance.
fn is_impure(path: &[String]) -> bool {
    let first = path[0].as_str();
    (path.len() > 1 && (first.starts_with("tokio") || matches!(first, "rand" | "fastrand")))
        || path.iter().any(|name| name == "SystemTime")
        || path.windows(2).any(|pair| pair == ["Instant", "now"])
}

/// Finds the paths in a source file.
struct Reader {
    tokens: Vec<String>,
    at: usize,
    /// The module that is being read, from the crate's root.
    module: Vec<String>,
    paths: Vec<Vec<String>>,
}

impl Reader {
    fn new(file: &str, text: &str) -> Self {
        let mut module: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        module.pop_if(|name| name == "mod" || name == "lib" || name == "main");
        Self { tokens: tokens(text), at: 0, module, paths: Vec::new() }
    }

    /// All paths outside of tests. Those into this crate begin with `crate`.
    fn read(mut self) -> Vec<Vec<String>> {
        // For each open brace: whether it is a module's.
        let mut braces = Vec::new();
        while self.at < self.tokens.len() {
            let is_test = [&["test", ")"][..], &["all", "(", "test", ","]];
            if self.sees(&["#", "[", "cfg", "("]) && is_test.iter().any(|test| self.sees_at(4, test)) {
                self.skip_item();
            } else if self.sees(&["mod"]) && self.token(2) == "{" {
                self.module.push(self.token(1).to_owned());
                braces.push(true);
                self.at += 3;
            } else if is_name(self.token(0)) || self.sees(&["::"]) {
                self.at += usize::from(self.sees(&["::"]));
                self.path(&[]);
            } else {
                match self.token(0) {
                    "{" => braces.push(false),
                    "}" if braces.pop() == Some(true) => drop(self.module.pop()),
                    // A field or a method is no path.
                    "." if is_name(self.token(1)) => self.at += 1,
                    _ => {}
                }
                self.at += 1;
            }
        }
        self.paths
    }

    /// Reads one path, or the tree of a `use`, that goes on from `prefix`.
    fn path(&mut self, prefix: &[String]) {
        let mut path = prefix.to_vec();
        while is_name(self.token(0)) {
            path.push(self.token(0).to_owned());
            self.at += 1;
            if !self.sees(&["::"]) {
                break;
            }
            self.at += 1;
        }
        if !self.sees(&["{"]) || self.tokens.get(self.at.wrapping_sub(1)).is_none_or(|token| token != "::") {
            self.add(path);
            return;
        }
        self.at += 1;
        while self.at < self.tokens.len() && !self.sees(&["}"]) {
            self.path(&path);
            // `*`, `as name` and the comma.
            while self.at < self.tokens.len() && !self.sees(&["}"]) && !self.sees(&[","]) {
                self.at += 1;
            }
            self.at += usize::from(self.sees(&[","]));
        }
        self.at += 1;
    }

    fn add(&mut self, mut path: Vec<String>) {
        if path.len() > 1 {
            // The `self` of `use a::{self}`.
            path.pop_if(|name| name == "self");
        }
        let up = path.iter().take_while(|name| *name == "super").count();
        match path.first().map(String::as_str) {
            None => return,
            Some("tieline") => path[0] = "crate".to_owned(),
            Some("self" | "super") => {
                let module = &self.module[..self.module.len().saturating_sub(up)];
                let rest = path.iter().skip_while(|name| matches!(name.as_str(), "self" | "super"));
                path = std::iter::once("crate").map(str::to_owned).chain(module.iter().chain(rest).cloned()).collect();
            }
            Some(_) => {}
        }
        self.paths.push(path);
    }

    /// Passes over an attribute and the item it stands on.
    fn skip_item(&mut self) {
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match self.token(0) {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            let ends = depth == 0 && matches!(self.token(0), "}" | ";");
            self.at += 1;
            if ends {
                return;
            }
        }
    }

    fn token(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", String::as_str)
    }

    fn sees(&self, tokens: &[&str]) -> bool {
        self.sees_at(0, tokens)
    }

    fn sees_at(&self, ahead: usize, tokens: &[&str]) -> bool {
        tokens.iter().enumerate().all(|(at, token)| self.token(ahead + at) == *token)
    }
}

/// Words that a path may stand behind, and cannot begin with.
const BEFORE_PATHS: [&str; 13] =
    ["as", "dyn", "else", "for", "if", "impl", "in", "let", "match", "mut", "ref", "return", "use"];

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_') && !BEFORE_PATHS.contains(&token)
}

/// The names, `::` and other marks of a source text, without comments and literals.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = string_length(rest) {
            length
        } else if first == '\'' {
            char_length(rest)
        } else if first.is_alphanumeric() || first == '_' {
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            length
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// The length of the string literal that the text begins with.
fn string_length(text: &str) -> Option<usize> {
    let start = text.trim_start_matches('b');
    let raw = start.strip_prefix('r');
    let hashes = raw.map_or(0, |raw| raw.len() - raw.trim_start_matches('#').len());
    let body = raw.unwrap_or(start)[hashes..].strip_prefix('"')?;
    let opening = text.len() - body.len();
    if raw.is_some() {
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(body.find(&end).map_or(text.len(), |at| opening + at + end.len()));
    }
    let mut escaped = false;
    for (at, c) in body.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(opening + at + 1),
            _ => {}
        }
    }
    Some(text.len())
}

/// The length of the character literal that the text begins with, or of a lifetime's mark.
fn char_length(text: &str) -> usize {
    let body = &text[1..];
    if let Some(escape) = body.strip_prefix('\\') {
        return escape[1..].find('\'').map_or(text.len(), |at| at + 4);
    }
    let c = body.chars().next().map_or(0, char::len_utf8);
    if body[c..].starts_with('\'') { c + 2 } else { 1 }
}

#[test]
fn a_violation_is_found() {
    for (file, text, fault) in [
        ("metric.rs", "", "metric has no place"),
        ("job.rs", "use crate::live::Stream;", "crate::live::Stream points"),
        ("app.rs", "fn f() { crate::cli::run() }", "crate::cli::run points"),
        ("state/mod.rs", "use crate::relay::Handle;", "crate::relay::Handle points"),
        ("relay/mod.rs", "use crate::{clock, job::{Job}};", "crate::job::Job points"),
        ("transfer/fetch.rs", "use crate::reconcile::Head;", "crate::reconcile::Head points"),
        ("transfer/fetch.rs", "use super::super::relay::Handle;", "crate::relay::Handle points"),
        ("transfer/mod.rs", "use super::relay::Handle;", "crate::relay::Handle points"),
        ("transfer/mod.rs", "mod a { use super::super::state::State; }", "crate::state::State points"),
        ("nostr/event.rs", "use crate::outcome::Skip;", "crate::outcome::Skip points"),
        ("outcome.rs", "type A = crate::config::Config;", "crate::config::Config points"),
        ("relay/session.rs", "use crate::metrics::Relay;", "crate::metrics::Relay points"),
        ("relay/session.rs", "fn f() { tokio::select! {} }", "tokio::select has no place"),
        ("schedule.rs", "#[cfg(not(test))]\nuse tokio::time;", "tokio::time has no place"),
        ("schedule.rs", "let now = std::time::Instant::now();", "std::time::Instant::now has no place"),
        ("health.rs", "use std::time::{Duration, SystemTime};", "std::time::SystemTime has no place"),
        ("reconcile/mod.rs", "let x = fastrand::u64(..);", "fastrand::u64 has no place"),
        ("state/mod.rs", "fn f() -> anyhow::Result<()> {}", "anyhow::Result is for"),
        ("job.rs", "use nostr::event::Event;", "nostr::event::Event is the nostr crate"),
        ("job.rs", "use ::nostr::event::Event;", "nostr::event::Event is the nostr crate"),
    ] {
        let faults = check(file, text);
        assert_eq!(faults.len(), 1, "{file}: {text}: {faults:?}");
        assert!(faults[0].contains(fault), "{faults:?}");
    }
}

#[test]
fn what_is_allowed_is_no_violation() {
    for (file, text) in [
        ("lib.rs", "pub mod job; pub mod relay;"),
        ("main.rs", "fn main() -> anyhow::Result<()> { tieline::cli::run() }"),
        ("cli/sync.rs", "use crate::{app::App, job, config::Config}; use super::report;"),
        ("job.rs", "use crate::relay; use crate::reconcile::{Action, paged::Paged as P, *};"),
        ("relay/mod.rs", "use crate::clock; mod session; use self::session::Session; let now = tokio::time::x();"),
        ("transfer/fetch.rs", "use super::check; use crate::transfer::Batch; use crate::config::Limits;"),
        ("config/mod.rs", "use crate::{job_spec::JobSpec, nostr::Filter, outcome};"),
        ("job.rs", "use crate::nostr::{self, Event}; fn f() { nostr::kind::is_ephemeral(1) }"),
        ("nostr/event.rs", "use nostr::event::Event;"),
        ("schedule.rs", "use std::time::Instant; fn f<'a>(c: char) -> bool { c == '\"' || c == '\\'' }"),
        (
            "schedule.rs",
            "// tokio::time\nconst S: &str = \"a \\\" tokio::x\"; /* crate::job::x */ let r = r#\"tokio::y\"#;",
        ),
        ("schedule.rs", "#[cfg(test)]\nmod tests { use tokio::time; fn f() { if x {} } }"),
        ("schedule.rs", "#[cfg(all(test, unix))]\nuse tokio::time;"),
        ("schedule/tests.rs", "use crate::job::Job;"),
        ("schedule/tests/model.rs", "use crate::job::Job;"),
        ("schedule.rs", "let x = self.tokio.rand(); tokio.rand::<u8>()"),
    ] {
        assert_eq!(check(file, text), Vec::<String>::new(), "{file}: {text}");
    }
}
