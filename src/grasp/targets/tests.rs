use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::grasp::index::Address;
use crate::nostr::{EventId, PublicKey};

fn url(n: u16) -> RelayUrl {
    format!("wss://r{n}.example").parse().unwrap()
}

fn rules(bootstrap: &[u16]) -> Rules {
    Rules {
        own: BTreeSet::from([Place::of_relay(&"wss://git.example".parse().unwrap()).unwrap()]),
        bootstrap: bootstrap.iter().map(|n| url(*n)).collect(),
        allow: None,
        deny: vec!["denied.example".into()],
        allow_private: false,
        bounds: Bounds::with_relays(3),
    }
}

fn key(n: u16) -> PublicKey {
    let mut bytes = [7; 32];
    bytes[..2].copy_from_slice(&n.to_be_bytes());
    PublicKey::new(bytes)
}

fn root(n: u32) -> EventId {
    let mut bytes = [9; 32];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    EventId::new(bytes)
}

/// Repositories, each with its relays and so many roots.
fn wanted(repositories: &[(u16, &[RelayUrl], u32)]) -> Wanted {
    let of = |&(n, relays, roots): &(u16, &[RelayUrl], u32)| {
        let repository = Repository {
            relays: relays.to_vec(),
            people: BTreeSet::from([key(n)]),
            roots: (0..roots).map(|r| (root(u32::from(n) * 100_000 + r), key(1000 + n))).collect(),
        };
        (Address { author: key(n), identifier: format!("r{n}") }, repository)
    };
    Wanted { repositories: repositories.iter().map(of).collect(), left_out: LeftOut::default() }
}

fn names(targets: &Targets, relay: &RelayUrl) -> Vec<String> {
    let names = targets.subscriptions(relay).into_iter();
    names.map(|sub| format!("{}-{}{}", sub.layer, sub.number, sub.part)).collect()
}

fn confirm_all(targets: &mut Targets) {
    for relay in targets.relays().cloned().collect::<Vec<_>>() {
        for sub in targets.subscriptions(&relay) {
            targets.confirm(&relay, sub.layer, sub.number, sub.part);
        }
    }
}

#[test]
fn a_relay_is_asked_in_three_layers() {
    let mut targets = Targets::new(rules(&[0]));
    assert_eq!(names(&targets, &url(0)), ["announcements-1"]);
    targets.update(&wanted(&[(1, &[url(5)], 1)]));
    let all = [
        "announcements-1",
        "repositories-1a",
        "repositories-1A",
        "repositories-1q",
        "states-1",
        "people-1",
        "roots-1e",
        "roots-1E",
        "roots-1q",
    ];
    assert_eq!(names(&targets, &url(5)), all);
    assert_eq!(names(&targets, &url(0)), all, "a bootstrap relay is asked for everything");
}

#[test]
fn a_relay_that_nothing_names_is_dropped_but_a_bootstrap_relay() {
    let mut targets = Targets::new(rules(&[0]));
    targets.update(&wanted(&[(1, &[url(5), url(6)], 1)]));
    assert_eq!(targets.relays().cloned().collect::<Vec<_>>(), [url(0), url(5), url(6)]);
    targets.update(&wanted(&[(1, &[url(6)], 1)]));
    assert_eq!(targets.relays().cloned().collect::<Vec<_>>(), [url(0), url(6)]);
    targets.update(&Wanted::default());
    assert_eq!(targets.relays().cloned().collect::<Vec<_>>(), [url(0)]);
    assert_eq!(names(&targets, &url(0)), ["announcements-1"]);
}

#[test]
fn who_is_not_asked_and_why() {
    let mut rules = rules(&[]);
    let ask = |rules: &Rules, text: &str| rules.refuses(&text.parse().unwrap());
    for (url, refusal) in [
        ("wss://git.example/any/path", Some(Refusal::Own)),
        ("ws://GIT.example", Some(Refusal::Own)),
        ("wss://git.example:8443", None),
        ("wss://Denied.example/x", Some(Refusal::Denied)),
        ("wss://not-denied.example", None),
        ("ws://127.0.0.1:7777", Some(Refusal::Private)),
        ("ws://[::ffff:10.1.2.3]", Some(Refusal::Private)),
        ("ws://localhost:7777", Some(Refusal::Private)),
        ("ws://abc.onion", Some(Refusal::Onion)),
    ] {
        assert_eq!(ask(&rules, url), refusal, "{url}");
    }
    rules.allow_private = true;
    rules.allow = Some(vec!["127.0.0.1".into(), "good.example".into()]);
    rules.bootstrap = vec!["wss://given.example".parse().unwrap()];
    for (url, refusal) in [
        ("ws://127.0.0.1:7777", None),
        ("wss://good.example", None),
        ("wss://given.example", None),
        ("wss://sub.good.example", Some(Refusal::Denied)),
    ] {
        assert_eq!(ask(&rules, url), refusal, "{url}");
    }
    rules.own.insert(Place::of_relay(&"wss://alias.example".parse().unwrap()).unwrap());
    assert_eq!(ask(&rules, "wss://alias.example/"), Some(Refusal::Own));
}

#[test]
fn the_relays_that_most_repositories_name_are_asked() {
    let mut targets = Targets::new(rules(&[0]));
    targets.update(&wanted(&[(1, &[url(3), url(4), url(5)], 0)]));
    targets.update(&wanted(&[(1, &[url(3), url(4), url(5)], 0), (2, &[url(1), url(2)], 0), (3, &[url(2)], 0)]));
    assert_eq!(targets.relays().cloned().collect::<Vec<_>>(), [url(0), url(2), url(3), url(4)]);
    assert_eq!(targets.left_out().relays, 2);
}

#[test]
fn what_is_new_makes_new_filters() {
    let mut targets = Targets::new(rules(&[0]));
    targets.update(&wanted(&[(1, &[], 150)]));
    let before = targets.subscriptions(&url(0));
    targets.update(&wanted(&[(1, &[], 152), (2, &[], 0)]));
    let after = targets.subscriptions(&url(0));
    assert!(before.iter().all(|sub| after.contains(sub)), "what was asked is not asked anew");
    let new: Vec<_> = after.iter().filter(|sub| !before.contains(sub)).collect();
    assert_eq!(new.len(), 3 + 1 + 1 + 3, "{new:#?}");
    assert!(new.iter().all(|sub| sub.was.is_empty()));
}

#[test]
fn what_leaves_makes_a_filter_smaller_without_new_history() {
    let mut targets = Targets::new(rules(&[0]));
    targets.update(&wanted(&[(1, &[], 0), (2, &[], 0)]));
    let old = targets.subscriptions(&url(0));
    confirm_all(&mut targets);
    targets.update(&wanted(&[(2, &[], 0)]));
    for (new, old) in targets.subscriptions(&url(0)).iter().zip(&old).skip(1) {
        assert_ne!(new.filter, old.filter);
        assert_eq!(new.was, std::slice::from_ref(&old.filter));
    }
}

#[test]
fn many_small_filters_become_few() {
    let mut targets = Targets::new(rules(&[0]));
    let mut all: Vec<(u16, &[RelayUrl], u32)> = Vec::new();
    for n in 0..300 {
        all.push((n, &[], 0));
        targets.update(&wanted(&all));
        confirm_all(&mut targets);
        let count = names(&targets, &url(0)).iter().filter(|name| name.starts_with("states")).count();
        assert!(count <= 300 / MOST_VALUES + SPARE_CONFIRMED + 1, "{count}");
    }
    // Nothing that was confirmed became pending, and what was packed says what it was.
    let target = &targets.relays[&url(0)];
    assert!(target.chunks.iter().all(|((layer, _), chunk)| chunk.is_confirmed(*layer)));
    let mut targets = Targets::new(rules(&[0]));
    for n in 1..=SPARE_CONFIRMED as u16 + 2 {
        targets.update(&wanted(&all[..usize::from(n)]));
        confirm_all(&mut targets);
    }
    let states = targets.subscriptions(&url(0)).into_iter().filter(|sub| sub.layer == Layer::States);
    let mut was: Vec<_> = states.map(|sub| sub.was.len()).collect();
    was.sort_unstable();
    assert_eq!(was, [0, SPARE_CONFIRMED + 1], "what is new beside what was packed");
}

#[test]
fn a_relay_with_too_much_is_bounded_and_says_so() {
    let mut rules = rules(&[0]);
    rules.bounds = Bounds { relays: 1, repositories: 2, people: 3, roots: 4 };
    let mut targets = Targets::new(rules);
    targets.update(&wanted(&[(1, &[], 3), (2, &[], 3), (3, &[], 3)]));
    let left = targets.left_out();
    assert_eq!((left.repositories, left.roots, left.people), (1, 2, 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// Whatever is wanted one after another: every item stands in exactly one filter, no filter is
    /// too long, none that is pending or confirmed is given out as new, and `was` covers what it
    /// stands for.
    #[test]
    fn wanted_less_pending_less_confirmed(
        steps in prop::collection::vec(
            (prop::collection::btree_map(0_u16..40, (prop::collection::vec(0_u16..6, 0..3), 0_u32..130), 0..12), any::<bool>()),
            1..30,
        )
    ) {
        let mut targets = Targets::new(rules(&[0]));
        for (repositories, confirms) in steps {
            let relays: BTreeMap<u16, Vec<RelayUrl>> =
                repositories.iter().map(|(n, (relays, _))| (*n, relays.iter().map(|r| url(*r)).collect())).collect();
            let list: Vec<_> = repositories.iter().map(|(n, (_, roots))| (*n, relays[n].as_slice(), *roots)).collect();
            let wanted = wanted(&list);
            let before: BTreeMap<RelayUrl, BTreeSet<Item>> = targets.relays.iter()
                .map(|(url, target)| (url.clone(), target.chunks.values().flat_map(|chunk| chunk.items.clone()).collect()))
                .collect();
            targets.update(&wanted);
            for (relay, target) in &targets.relays {
                let of_relay: Vec<_> = wanted.repositories.iter()
                    .filter(|(_, r)| *relay == url(0) || r.relays.contains(relay)).collect();
                let want = items(&wanted, &of_relay, &targets.rules.bounds, &mut LeftOut::default());
                let asked: Vec<&Item> = target.chunks.values().flat_map(|chunk| &chunk.items).collect();
                prop_assert_eq!(asked.len(), want.len(), "each once");
                prop_assert_eq!(asked.into_iter().cloned().collect::<BTreeSet<_>>(), want);
                let before = before.get(relay).cloned().unwrap_or_default();
                for ((layer, _), chunk) in &target.chunks {
                    prop_assert!(!chunk.items.is_empty() && chunk.items.len() <= MOST_VALUES);
                    prop_assert!(chunk.items.iter().all(|item| item.layer() == *layer));
                    if !chunk.was.is_empty() {
                        let was: BTreeSet<Item> = chunk.was.iter().flatten().cloned().collect();
                        prop_assert!(chunk.items.is_subset(&was));
                    }
                    if chunk.is_confirmed(*layer) {
                        prop_assert!(chunk.items.is_subset(&before), "nothing new is confirmed");
                    }
                }
                prop_assert!(target.new_work(&before.intersection(&items(&wanted, &of_relay, &targets.rules.bounds, &mut LeftOut::default())).cloned().collect()).is_empty());
            }
            if confirms {
                confirm_all(&mut targets);
            }
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn measure_a_large_picture() {
    let relays: Vec<RelayUrl> = (0..30).map(url).collect();
    let list: Vec<(u16, &[RelayUrl], u32)> = (0..2000).map(|n| (n, &relays[usize::from(n % 25)..][..5], 20)).collect();
    let mut targets = Targets::new(Rules { bounds: Bounds::with_relays(100), ..rules(&[0, 1]) });
    for _ in 0..3 {
        let wanted = wanted(&list);
        #[allow(clippy::disallowed_methods)]
        let start = std::time::Instant::now();
        targets.update(&wanted);
        let update = start.elapsed();
        let count: usize = targets.relays().map(|url| targets.subscriptions(url).len()).sum();
        println!("update {update:?}, all {:?}, {count} filters", start.elapsed());
    }
}
