//! Warnings: what a config may say, and hardly ever means. One is an error: it never means that.

use std::net::SocketAddr;

use crate::nostr::{Filter, RelayUrl, TagName, kind};

use super::file::is_tag_key;
use super::finding::{Findings, Path};
use super::relay::RelaySettings;
use super::spans::Place;

/// Warns about the filters of one peer; `at` is the list they stand in.
pub(super) fn filters(filters: &[(Path, Filter)], at: &Path, findings: &mut Findings<'_>) {
    let takes_deletions = |filter: &Filter| filter.kinds().is_none_or(|kinds| kinds.contains(&kind::DELETION));
    for (at, filter) in filters {
        let (Some(authors), false) = (filter.authors(), takes_deletions(filter)) else { continue };
        // Another filter may bring the deletions of the same authors.
        let covered = filters
            .iter()
            .any(|(_, other)| takes_deletions(other) && other.authors().is_none_or(|others| authors.is_subset(others)));
        if !covered {
            findings.warn(at, "`kinds` has no 5: deletions by these authors will not travel");
        }
    }
    let inbox = TagName::new('p');
    let has_inbox = |filter: &Filter| inbox.is_some_and(|name| filter.has_tag(name));
    if !filters.is_empty() && filters.iter().all(|(_, filter)| filter.authors().is_some() && !has_inbox(filter)) {
        findings.warn(at, "every filter names authors and none has `#p`: what others send to them will not travel");
    }
}

/// Warns about relays that are named twice.
pub(super) fn relays(local: &RelaySettings, peers: &[(Path, RelaySettings)], findings: &mut Findings<'_>) {
    for (index, (at, peer)) in peers.iter().enumerate() {
        let at = at.key("url");
        if place(&peer.url) == place(&local.url) {
            findings.warn(&at, "this peer is the local relay");
        }
        if let Some((_, other)) = peers[..index].iter().find(|(_, other)| place(&other.url) == place(&peer.url)) {
            findings.warn(&at, format!("this is the same relay as the peer {:?}", other.name));
        }
    }
}

/// Refuses a gateway that would be its own relay: each client would open connections without end.
pub(super) fn gateway(local: &RelaySettings, listen: SocketAddr, at: &Path, findings: &mut Findings<'_>) {
    let own: Option<RelayUrl> = format!("ws://{listen}").parse().ok();
    if own.is_some_and(|own| place(&own) == place(&local.url)) {
        findings.error(at, "the gateway would listen where it takes the local relay to be");
    }
}

/// Warns about a tag key without quotes: to YAML, `#p: […]` is a comment, and the filter matches
/// more than it seems to.
pub(super) fn comments(text: &str, findings: &mut Findings<'_>) {
    for (index, line) in text.lines().enumerate() {
        let start = line.len() - line.trim_start_matches([' ', '-']).len();
        if line[start..].split_once(':').is_some_and(|(key, _)| is_tag_key(key)) {
            let key = &line[start..start + 2];
            let place = Place { line: index + 1, column: start + 1 };
            findings
                .warn_at(place, format!("this line is a comment: if it is meant as a filter's key, write \"{key}\""));
        }
    }
}

/// The URL, with one name for the machine itself.
fn place(url: &RelayUrl) -> String {
    let text = url.as_str();
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let host = rest.find('/').map_or(rest, |end| &rest[..end]);
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, port),
        _ => (host, ""),
    };
    let name = if matches!(name, "localhost" | "[::1]") { "127.0.0.1" } else { name };
    format!("{scheme}://{name}:{port}{}", &rest[host.len()..])
}
