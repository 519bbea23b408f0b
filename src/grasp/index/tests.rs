use std::collections::BTreeSet;

use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use nostr::nips::nip19::ToBech32;
use proptest::prelude::*;
use proptest::sample::subsequence;

use super::*;

const SERVICE: &str = "wss://git.example";

fn keys(n: u8) -> Keys {
    Keys::parse(&format!("{n:02x}").repeat(32)).unwrap()
}

fn key(n: u8) -> PublicKey {
    PublicKey::new(*keys(n).public_key().as_bytes())
}

fn npub(n: u8) -> String {
    keys(n).public_key().to_bech32().unwrap()
}

fn event(author: u8, kind: u16, at: u64, tags: &[&[&str]]) -> Event {
    let event = EventBuilder::new(Kind::from_u16(kind), "")
        .tags(tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap()))
        .custom_created_at(nostr::types::Timestamp::from_secs(at))
        .finalize(&keys(author))
        .unwrap();
    Event::parse(&event.as_json()).unwrap()
}

/// An announcement that lists the service, and these relays besides.
fn announcement(author: u8, d: &str, at: u64, relays: &[&str]) -> Event {
    let clone = format!("https://git.example/{}/{d}.git", npub(author));
    let relays: Vec<&str> = ["relays", SERVICE].into_iter().chain(relays.iter().copied()).collect();
    event(author, ANNOUNCEMENT, at, &[&["d", d], &["clone", "https://other.example/x.git", &clone], &relays])
}

fn address(author: u8, d: &str) -> String {
    format!("30617:{}:{d}", key(author))
}

fn index() -> Index {
    Index::new(Place::of_relay(&SERVICE.parse().unwrap()).unwrap())
}

fn folded<'e>(events: impl IntoIterator<Item = &'e Event>) -> Wanted {
    let mut index = index();
    events.into_iter().for_each(|event| index.fold(event));
    index.wanted()
}

/// Which repositories are wanted, with how many relays and roots.
fn show(wanted: &Wanted) -> Vec<(String, usize, usize)> {
    wanted.repositories.iter().map(|(at, r)| (at.to_string(), r.relays.len(), r.roots.len())).collect()
}

#[test]
fn a_repository_is_ours_when_it_lists_us_twice() {
    let npub = npub(1);
    let clone = |url: &str| url.replace("NPUB", &npub);
    for (clones, relays, ours) in [
        ("https://git.example/NPUB/d.git", "wss://git.example", true),
        ("http://GIT.EXAMPLE:80/NPUB/d.git", "ws://git.example/", true),
        ("https://git.example./NPUB/d%3A1.git", "WSS://GIT.EXAMPLE:443/", true),
        ("https://git.example/NPUB/d.git", "wss://relay.example", false),
        ("https://other.example/NPUB/d.git", "wss://git.example", false),
        ("https://git.example.org/NPUB/d.git", "wss://git.example", false),
        ("https://git.example/NPUB/d.git", "wss://git.example.org", false),
        ("https://git.example/NPUB/d.git", "wss://other.example/git.example", false),
        ("https://git.example:8443/NPUB/d.git", "wss://git.example", false),
        ("https://git.example/NPUB/d.git", "wss://git.example:8443", false),
        ("https://git.example/NPUB/d", "wss://git.example", false),
        ("https://git.example/not-an-npub/d.git", "wss://git.example", false),
        ("https://git.example/x/NPUB/d.git", "wss://git.example", false),
        ("ssh://git.example/NPUB/d.git", "wss://git.example", false),
        ("https://git.example/NPUB/d.git", "https://git.example", false),
    ] {
        let event = event(1, ANNOUNCEMENT, 1, &[&["d", "d"], &["clone", &clone(clones)], &["relays", relays]]);
        assert_eq!(!folded([&event]).repositories.is_empty(), ours, "{clones} {relays}");
    }
}

#[test]
fn only_relays_are_relays_and_each_is_named_once() {
    let event = event(
        1,
        ANNOUNCEMENT,
        1,
        &[
            &["d", "a:b"],
            &["clone", &format!("https://git.example/{}/a:b.git", npub(1)), "https://github.example/x/y.git"],
            &["relays", SERVICE, "wss://R.example/", "wss://r.example", "nonsense", "https://no.example"],
            &["relays", "WSS://r.example:443", "ws://s.example:7777"],
            &["web", "wss://w.example"],
            &["maintainers", &key(2).to_string(), "nobody"],
        ],
    );
    let wanted = folded([&event]);
    let (at, repository) = wanted.repositories.first_key_value().unwrap();
    assert_eq!(at.to_string(), address(1, "a:b"), "an identifier may hold a colon");
    let relays: Vec<_> = repository.relays.iter().map(RelayUrl::as_str).collect();
    assert_eq!(relays, [SERVICE, "wss://r.example", "ws://s.example:7777"]);
    assert_eq!(repository.people, BTreeSet::from([key(1), key(2)]));
}

#[test]
fn roots_are_found_by_any_link_to_a_repository() {
    let here = address(1, "a:b");
    let ours = announcement(1, "a:b", 1, &[]);
    let events: Vec<_> = [("a", 1617), ("A", 1618), ("q", 1621)]
        .into_iter()
        .map(|(tag, kind)| event(3, kind, 5, &[&[tag, &here]]))
        .collect();
    let others = [
        event(3, 1621, 5, &[&["a", &address(1, "a")]]),
        event(3, 1621, 5, &[&["a", &address(2, "a:b")]]),
        event(3, 1621, 5, &[&["e", &here]]),
        event(3, 1111, 5, &[&["a", &here]]),
    ];
    let wanted = folded([&ours].into_iter().chain(&events).chain(&others));
    let roots = &wanted.repositories[&here.parse().unwrap()].roots;
    assert_eq!(roots.keys().copied().collect::<BTreeSet<_>>(), events.iter().map(Event::id).collect());
    assert_eq!(roots.values().collect::<BTreeSet<_>>(), BTreeSet::from([&key(3)]));
}

#[test]
fn a_newer_announcement_replaces_an_older_one() {
    let with = announcement(1, "r", 1, &["wss://a.example", "wss://b.example"]);
    let fewer = announcement(1, "r", 2, &["wss://b.example"]);
    let elsewhere = event(1, ANNOUNCEMENT, 3, &[&["d", "r"], &["relays", "wss://b.example"]]);
    let here = address(1, "r");
    assert_eq!(show(&folded([&fewer, &with])), [(here.clone(), 2, 0)]);
    assert_eq!(show(&folded([&with])), [(here, 3, 0)]);
    assert_eq!(show(&folded([&elsewhere, &with, &fewer])), [], "it lists us no longer");
}

#[test]
fn what_its_author_deleted_is_not_wanted() {
    let here = address(1, "r");
    let (old, new) = (announcement(1, "r", 10, &[]), announcement(1, "r", 30, &[]));
    let root = event(2, 1621, 12, &[&["a", &here]]);
    let gone = event(1, 5, 20, &[&["a", &here]]);
    assert_eq!(show(&folded([&gone, &old])), []);
    assert_eq!(show(&folded([&gone, &old, &new])), [(here.clone(), 1, 0)], "announced again");
    assert_eq!(show(&folded([&event(2, 5, 20, &[&["a", &here]]), &old])), [(here.clone(), 1, 0)], "not by its author");
    let by_id = |author, of: &Event| event(author, 5, 40, &[&["e", &of.id().to_string()]]);
    assert_eq!(show(&folded([&new, &by_id(1, &new)])), []);
    assert_eq!(show(&folded([&new, &root, &by_id(2, &root)])), [(here.clone(), 1, 0)]);
    assert_eq!(show(&folded([&new, &root, &by_id(1, &root)])), [(here.clone(), 1, 1)]);
    for (relay, left) in [("ALL_RELAYS", 0), ("wss://git.example/", 0), ("wss://other.example", 1)] {
        assert_eq!(folded([&event(1, 62, 30, &[&["relay", relay]]), &new]).repositories.len(), left, "{relay}");
    }
}

#[test]
fn a_strangers_announcement_is_bounded_and_says_so() {
    let urls: Vec<String> = (0..200).map(|n| format!("wss://r{n}.example")).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let wanted = folded([&announcement(1, "r", 1, &urls)]);
    assert_eq!(show(&wanted), [(address(1, "r"), RELAYS_PER_REPOSITORY, 0)]);
    assert_eq!(wanted.left_out.relays, 201 - RELAYS_PER_REPOSITORY);
    let wanted = folded([&announcement(1, &"x".repeat(MOST_IDENTIFIER + 1), 1, &[])]);
    assert_eq!((wanted.repositories.len(), wanted.left_out.events), (0, 1));
}

#[test]
fn the_newest_roots_of_a_large_repository_are_followed() {
    let here = address(1, "r");
    let mut index = index();
    index.fold(&announcement(1, "r", 1, &[]));
    let roots: Vec<_> =
        (0..ROOTS_PER_REPOSITORY as u64 + 10).map(|n| event(2, 1621, 100 + n, &[&["a", &here]])).collect();
    roots.iter().for_each(|root| index.fold(root));
    let wanted = index.wanted();
    assert_eq!(wanted.left_out.roots, 10);
    let kept = &wanted.repositories[&here.parse().unwrap()].roots;
    assert_eq!(kept.len(), ROOTS_PER_REPOSITORY);
    assert!(roots[10..].iter().all(|root| kept.contains_key(&root.id())));
}

/// Events of a small world: announcements in versions, roots, deletions, requests to vanish.
fn world() -> Vec<Event> {
    let mut events = Vec::new();
    for author in 1..=3 {
        for d in ["a", "a:b"] {
            for at in [10, 20, 30] {
                let relays = [format!("wss://r{}.example", u64::from(author) * at)];
                events.push(announcement(author, d, at, &[&relays[0]]));
            }
            events.push(event(author, ANNOUNCEMENT, 25, &[&["d", d]]));
            let here = address(author, d);
            let root = event(4, 1621, 15, &[&["a", &here]]);
            events.push(event(4, 5, 16, &[&["e", &root.id().to_string()]]));
            events.push(root);
            events.push(event(5, 1618, 15, &[&["A", &here], &["q", &address(1, "a")]]));
            events.push(event(author, 5, 22, &[&["a", &here]]));
        }
    }
    events.push(event(3, 62, 20, &[&["relay", "ALL_RELAYS"]]));
    events
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Whatever part of the world there is, the order in which it comes, and what comes twice,
    /// change nothing.
    #[test]
    fn the_order_of_arrival_does_not_matter(
        (some, shuffled, twice) in subsequence(world(), 1..=50_usize.min(world().len()))
            .prop_flat_map(|some| {
                let len = some.len();
                (Just(some.clone()), Just(some).prop_shuffle(), 0..len)
            })
    ) {
        let again = &shuffled[twice];
        prop_assert_eq!(folded(&some), folded(shuffled.iter().chain([again])));
    }
}
