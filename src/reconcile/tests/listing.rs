//! Relays that have to be listed.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::*;
use super::model::*;
use crate::job_spec::StrategyChoice;
use crate::outcome::BySide;

const LIMIT: usize = 60;

/// Lists a relay to the end: the heads, the dense seconds, and the pages it took.
fn list(relay: &mut Relay, filter: &Filter) -> Result<(Vec<Head>, Vec<DenseSecond>, usize), PagerError> {
    let mut pager = Pager::new(filter.clone(), NOW + 86_400, PageSize { limit: LIMIT, largest: 0 });
    let mut heads: Vec<Head> = Vec::new();
    let mut complete = u64::MAX;
    let mut pages = 0;
    while let Some(question) = pager.next_question() {
        let Answer::Page(page) = relay.answer(&question) else { panic!("no page") };
        let new = pager.take(page)?;
        assert!(heads.iter().chain(&new).is_sorted_by(|a, b| a.created_at >= b.created_at), "out of order");
        assert!(new.iter().all(|head| head.created_at < complete), "after its second was said to be complete");
        assert!(pager.complete_from() <= complete);
        complete = pager.complete_from();
        heads.extend(new);
        pages += 1;
        assert!(pages < 5_000, "a loop");
    }
    assert!(pager.is_done() && complete == 0);
    Ok((heads, pager.take_dense(), pages))
}

/// A relay with `counts` events in the seconds before [`NOW`], newest first.
fn seconds(counts: &[usize], habits: Habits) -> Relay {
    let items = counts.iter().zip(0..).flat_map(|(count, back)| {
        (0..*count as u32).map(move |n| Item {
            kind: 1 + (n % 4) as u16,
            author: (n / 4 % 3) as u8,
            ..Item::new(NOW - u64::from(back), id(0, back << 16 | n))
        })
    });
    let mut relay = Relay::new(items);
    relay.habits = habits;
    relay
}

fn narrow_filter() -> Filter {
    let kinds = Filter::new().narrow_kinds(1..=4);
    kinds.and_then(|filter| filter.narrow_authors((0..3).map(author))).expect("a filter of lists")
}

#[test]
fn the_walk_ends_with_the_list() {
    for (count, pages) in [(0, 1), (1, 3), (59, 3), (60, 3), (61, 4), (500, 11)] {
        let mut relay = seconds(&vec![1; count], Habits::default());
        let (heads, dense, asked) = list(&mut relay, &Filter::new()).unwrap();
        assert_eq!((heads.len(), dense.len(), asked), (count, 0, pages));
    }
    let mut relay = seconds(&[1; 119], Habits { hints: true, ..Habits::default() });
    assert_eq!(list(&mut relay, &Filter::new()).unwrap().2, 2);
}

#[test]
fn the_first_page_has_no_end() {
    let mut pager = Pager::new(Filter::new(), NOW, PageSize { limit: 10, largest: 0 });
    let question = pager.next_question();
    assert_eq!(question, Some(Question::Page { filter: Filter::new(), limit: 10 }));
    assert_eq!(pager.next_question(), None);
    // A page full of the future is passed over, and is progress all the same.
    let heads = (0..10).rev().map(|n| Head { created_at: NOW + 1 + u64::from(n), id: id(0, n) }).collect();
    assert_eq!(pager.take(Page { heads, received: 10, hint: None }), Ok(vec![]));
    assert_eq!(pager.complete_from(), NOW + 1);
    let Some(Question::Page { filter, .. }) = pager.next_question() else { panic!("no question") };
    assert_eq!(filter.until(), Some(NOW + 1));
}

/// An old event that appears while a page is sent is not where the next page begins.
#[test]
fn a_page_that_is_out_of_order_is_asked_for_again() {
    let page = |times: &[u64]| {
        let heads: Vec<_> =
            times.iter().map(|at| Head { created_at: *at, id: id(0, u32::try_from(*at).unwrap()) }).collect();
        Page { received: heads.len(), heads, hint: None }
    };
    let mut pager = Pager::new(Filter::new(), NOW, PageSize { limit: 4, largest: 0 });
    let first = pager.next_question();
    assert_eq!(pager.take(page(&[100, 90, 3, 80])), Ok(vec![]));
    assert_eq!(pager.next_question(), first, "the same page");
    assert_eq!(pager.take(page(&[100, 90, 80, 70])).map(|heads| heads.len()), Ok(4));
    let Some(Question::Page { filter, .. }) = pager.next_question() else { panic!("no question") };
    assert_eq!(filter.until(), Some(70));
    // In an order of its own, page after page: each is taken after all.
    assert_eq!(pager.take(page(&[40, 50, 60, 70])), Ok(vec![]));
    pager.next_question();
    assert_eq!(pager.take(page(&[40, 50, 60, 70])).map(|heads| heads.len()), Ok(3));
    pager.next_question();
    assert_eq!(pager.take(page(&[10, 20, 30, 40])).map(|heads| heads.len()), Ok(3));
}

/// Old events come all the time, and each page has one in it somewhere.
#[test]
fn a_steady_trickle_of_old_events_hides_nothing() {
    for place in 0..10 {
        let stored: Vec<u64> = (951..=1000).rev().collect();
        let mut pager = Pager::new(Filter::new(), NOW, PageSize { limit: 10, largest: 0 });
        let mut found = BTreeSet::new();
        let mut old = 0;
        while let Some(Question::Page { filter, limit }) = pager.next_question() {
            let until = filter.until().unwrap_or(u64::MAX);
            let times = stored.iter().filter(|at| **at <= until).take(limit);
            let mut heads: Vec<_> =
                times.map(|at| Head { created_at: *at, id: id(0, u32::try_from(*at).unwrap()) }).collect();
            if heads.len() > place {
                old += 1;
                heads.insert(place, Head { created_at: 10, id: id(1, old) });
            }
            found.extend(pager.take(Page { received: heads.len(), heads, hint: None }).unwrap());
        }
        let times = found.iter().filter(|head| head.created_at > 10).count();
        assert!(pager.is_done() && times == 50, "{place}: {times}");
    }
}

/// What a dense second of a single kind and author comes to.
#[test]
fn a_dense_second_is_complete_or_a_gap() {
    let gap = |back, cap| Some(DenseSecond { second: NOW - back, cap });
    let capped = |cap| Habits { cap, ..Habits::default() };
    let table = [
        // Full pages, of the limit or of a cap proven by what is below.
        (&[1, 200, 1][..], capped(usize::MAX), gap(1, 60)),
        (&[1, 200], capped(usize::MAX), gap(1, 60)),
        (&[1, 40, 1], capped(40), gap(1, 40)),
        (&[1, 40, 1], capped(41), None),
        // Nothing is below: a round number is a cap, unless a larger page was seen.
        (&[1, 50], capped(50), gap(1, 50)),
        (&[1, 49], capped(60), None),
        (&[5, 50], capped(60), None),
        (&[50], capped(60), gap(0, 50)),
        // The relay says that there is more, or that there is not.
        (&[1, 57], Habits { hints: true, ..capped(41) }, gap(1, 41)),
        (&[1, 50], Habits { hints: true, ..capped(60) }, None),
    ];
    for (counts, habits, expected) in table {
        let mut relay = seconds(counts, habits.clone());
        let (heads, dense, _) = list(&mut relay, &Filter::new()).unwrap();
        assert_eq!(dense.first().copied(), expected, "{counts:?} {habits:?}");
        if expected.is_none() {
            assert_eq!(heads.len(), counts.iter().sum::<usize>(), "{counts:?} {habits:?}");
        }
    }
}

#[test]
fn a_dense_second_is_divided_by_kinds_and_authors() {
    for lowest_first in [true, false] {
        let mut relay = seconds(&[3, 400, 3], Habits { cap: 50, lowest_first, ..Habits::default() });
        let (heads, dense, _) = list(&mut relay, &narrow_filter()).unwrap();
        assert_eq!((heads.len(), dense), (406, vec![]));
        let mut relay = seconds(&[3, 1_000, 3], Habits { cap: 50, lowest_first, ..Habits::default() });
        let (heads, dense, _) = list(&mut relay, &narrow_filter()).unwrap();
        assert_eq!(dense, [DenseSecond { second: NOW - 1, cap: 50 }]);
        // Of twelve parts, each gave a page.
        assert_eq!(heads.len(), 3 + 12 * 50 + 3);
    }
}

#[test]
fn a_listing_that_does_not_go_on_is_an_error() {
    let mut deaf = seconds(&[1; 200], Habits { ignores_until: true, ..Habits::default() });
    assert_eq!(list(&mut deaf, &Filter::new()), Err(PagerError::NoProgress));
    let mut deaf = seconds(&[1; 200], Habits { ignores_until: true, ignores_limit: true, ..Habits::default() });
    assert_eq!(list(&mut deaf, &Filter::new()), Err(PagerError::NoProgress));
    // A relay that says so has sent all.
    let mut deaf = seconds(&[1; 20], Habits { ignores_until: true, hints: true, ..Habits::default() });
    assert_eq!(list(&mut deaf, &Filter::new()).unwrap().0.len(), 20);

    let mut pager = Pager::new(Filter::new(), NOW, PageSize { limit: 10, largest: 0 });
    let junk = || Page { heads: vec![], received: 3, hint: None };
    pager.next_question();
    assert_eq!(pager.take(junk()), Ok(vec![]));
    pager.next_question();
    assert_eq!(pager.take(junk()), Err(PagerError::NoProgress));
    assert_eq!(pager.take(junk()), Err(PagerError::Unasked));
}

#[test]
fn a_large_inventory_is_settled_in_chunks() {
    let mut local = seconds(&[3; 400], Habits::default());
    let mut peer = seconds(&[3; 410], Habits::default());
    let mut setup = setup(StrategyChoice::Auto);
    setup.speaks_nip77.local = false;
    setup.page_limit.local = LIMIT;
    setup.inventory_events = 100;
    let outcome = run_exact(setup.clone(), &mut local, &mut peer);
    assert_eq!((outcome.strategy, outcome.found.len(), local.queries), ("inventory", 30, 0));
    assert!((10..=14).contains(&peer.queries), "{}", peer.queries);
    // A second is taken whole, up to ten times as many.
    let mut local = seconds(&[5, 900, 5], Habits::default());
    setup.page_limit.local = 1_000;
    run_exact(setup.clone(), &mut local, &mut peer);
    let mut local = seconds(&[5, 1_100, 5], Habits::default());
    setup.page_limit.local = 200;
    setup.filter = narrow_filter();
    let error = run(setup, &mut local, &mut peer).unwrap_err();
    assert_eq!(error, ReconcileError::TooDense { side: Side::Local, second: NOW - 1 });
}

#[test]
fn equal_inventories_cost_one_query() {
    for listed in Side::BOTH {
        let mut local = seconds(&[3; 40], Habits::default());
        let mut peer = seconds(&[3; 40], Habits::default());
        let mut setup = setup(StrategyChoice::Auto);
        setup.speaks_nip77[listed] = false;
        let outcome = run_exact(setup, &mut local, &mut peer);
        assert_eq!((local.queries + peer.queries, local.pages + peer.pages), (1, 3));
        assert!(outcome.shown.local && outcome.shown.peer);
    }
}

#[test]
fn only_the_listing_that_is_behind_goes_on() {
    let mut local = seconds(&[1; 2_000], Habits::default());
    let mut peer = seconds(&[0, 0, 0, 1, 1], Habits::default());
    let mut setup = setup(StrategyChoice::Paged);
    setup.page_limit = BySide { local: 100, peer: 100 };
    let outcome = run_exact(setup, &mut local, &mut peer);
    assert!(outcome.concurrent > 0);
    assert_eq!((local.pages, peer.pages), (23, 3));
}

fn habits() -> impl Strategy<Value = Habits> {
    let cap = prop_oneof![Just(usize::MAX), Just(7), Just(50), Just(100)];
    (cap, any::<[bool; 3]>(), prop::bool::weighted(0.2)).prop_map(
        |(cap, [ignores_limit, lowest_first, hints], chatty)| Habits {
            cap,
            ignores_limit,
            ignores_until: false,
            lowest_first,
            hints,
            // Only a relay that sends nothing else is counted on for a cap that is proven by its
            // size alone.
            chatty: chatty && cap != 50,
        },
    )
}

/// Two relays with a few seconds, some of them dense, and some ids in common. The last second
/// holds one event on each side, so that any cap is proven.
fn relays() -> impl Strategy<Value = (Relays, Filter)> {
    let counts = prop::collection::vec(prop_oneof![8 => 0..6_usize, 1 => 0..150_usize], 0..40);
    (counts, habits(), habits(), any::<u64>(), any::<bool>()).prop_map(|(mut counts, a, b, seed, narrow)| {
        let mut rng = fastrand::Rng::with_seed(seed);
        counts.push(1);
        let all = seconds(&counts, a);
        let last = NOW + 1 - counts.len() as u64;
        let mut some = |habits| {
            let items: Vec<_> = all.items.iter().copied().filter(|item| item.at == last || rng.u8(..4) > 0).collect();
            let mut relay = Relay::new(items);
            relay.habits = habits;
            relay
        };
        let relays = Relays(some(all.habits.clone()), some(b));
        (relays, if narrow { narrow_filter() } else { Filter::new() })
    })
}

struct Relays(Relay, Relay);

impl std::fmt::Debug for Relays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(a, b) = self;
        write!(f, "{} items, {:?}; {} items, {:?}", a.items.len(), a.habits, b.items.len(), b.habits)
    }
}

/// What is found must be the difference, but for the seconds that are said not to be known; in
/// these too nothing is missed that was listed.
fn settled(setup: Setup, relays: &mut Relays) -> Result<(), TestCaseError> {
    let Relays(local, peer) = relays;
    let expected = difference(&setup, local, peer);
    let outcome = run(setup, local, peer).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let unknown: BTreeSet<_> = outcome.gaps.iter().map(|gap| gap.second).collect();
    let hidden: BTreeSet<_> =
        local.items.union(&peer.items).filter(|item| unknown.contains(&item.at)).map(|item| item.id).collect();
    let known = |mut found: Vec<(Side, EventId)>| {
        found.sort();
        found.retain(|(_, id)| !hidden.contains(id));
        found
    };
    prop_assert_eq!(known(outcome.found), known(expected));
    for gap in outcome.gaps {
        let habits = if gap.side == Side::Local { &local.habits } else { &peer.habits };
        // A round number with nothing below is taken for a cap.
        prop_assert!(gap.cap >= habits.cap.min(LIMIT) || gap.cap == 50, "{gap:?} though the relay had room");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_listing_is_complete_but_for_its_gaps((Relays(mut relay, _), filter) in relays()) {
        let (heads, dense, _) = list(&mut relay, &filter).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let unique: BTreeSet<_> = heads.iter().copied().collect();
        prop_assert_eq!(unique.len(), heads.len(), "an id twice");
        for item in &relay.items {
            let gap = dense.iter().any(|dense| dense.second == item.at);
            prop_assert!(gap || unique.contains(&Head { created_at: item.at, id: item.id }), "{item:?} {dense:?}");
        }
        for dense in dense {
            let held = heads.iter().filter(|head| head.created_at == dense.second).count();
            let chatter = usize::from(relay.habits.chatty);
            prop_assert!(held + chatter >= dense.cap.min(relay.habits.cap), "a gap without what there is to be had");
        }
    }

    #[test]
    fn paged_finds_the_difference((mut relays, filter) in relays()) {
        let page_limit = BySide { local: LIMIT, peer: LIMIT };
        settled(Setup { filter, page_limit, ..setup(StrategyChoice::Paged) }, &mut relays)?;
        prop_assert_eq!(relays.0.queries + relays.1.queries, 0);
    }

    #[test]
    fn an_inventory_finds_the_difference(
        (mut relays, filter) in relays(),
        listed in any::<bool>(),
        inventory_events in 15..200_usize,
        max_sync in prop::option::of((6..100_usize, any::<[bool; 2]>())),
    ) {
        let listed = if listed { Side::Local } else { Side::Peer };
        let page_limit = BySide { local: LIMIT, peer: LIMIT };
        let mut setup = Setup { filter, page_limit, inventory_events, ..setup(StrategyChoice::Inventory) };
        setup.speaks_nip77[listed] = false;
        let max_sync = max_sync.map(|(events, [says_max, says_found])| MaxSync { events, says_max, says_found });
        for relay in [&mut relays.0, &mut relays.1] {
            relay.max_sync = max_sync;
            // With a single second asked for there is no page below to prove a cap by. Real caps
            // are round numbers.
            if max_sync.is_some() && relay.habits.cap < 50 {
                relay.habits = Habits { cap: 50, chatty: false, ..relay.habits.clone() };
            }
        }
        settled(setup, &mut relays)?;
        let other = if listed == Side::Local { &relays.1 } else { &relays.0 };
        prop_assert!(other.queries > 0 || max_sync.is_some());
    }
}
