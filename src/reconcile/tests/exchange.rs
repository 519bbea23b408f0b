//! Two relays that speak NIP-77.

use proptest::prelude::*;

use super::super::message::{Bound, Decoder, Encoder, Mode, fingerprint};
use super::model::*;
use crate::job_spec::{Side, StrategyChoice};
use crate::nostr::EventId;

const FRAMES: [u64; 4] = [0, 4096, 60_000, 500_000];

/// `common` items on both sides, and some on each alone, spread over `seconds` seconds.
fn relays(seed: u64, common: usize, local: usize, peer: usize, seconds: u64) -> (Relay, Relay) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut items =
        |n: usize| -> Vec<_> { (0..n).map(|_| Item::new(NOW - 1 - rng.u64(..seconds), random_id(&mut rng))).collect() };
    let both = items(common);
    let (local, peer) = (items(local), items(peer));
    (Relay::new(both.iter().copied().chain(local)), Relay::new(both.iter().copied().chain(peer)))
}

#[test]
fn equal_sets_cost_one_query_a_side() {
    for n in [0, 1, 31, 32, 500, 50_000] {
        let (mut local, mut peer) = relays(1, n, 0, 0, 1_000_000);
        let outcome = run_exact(setup(StrategyChoice::Auto), &mut local, &mut peer);
        assert_eq!((local.queries, peer.queries), (1, 1), "{n}");
        assert!(local.bytes + peer.bytes < 3_000, "{} bytes", local.bytes + peer.bytes);
        assert_eq!(outcome.shown.local, n > 0);
        assert_eq!(outcome.shown.peer, n > 0);
    }
}

#[test]
fn a_small_difference_of_large_sets_costs_few_rounds() {
    let mut measured = Vec::new();
    for frame in [0, 500_000] {
        let (mut local, mut peer) = relays(2, 100_000, 1_000, 1_000, 100_000_000);
        (local.frame, peer.frame) = (frame, frame);
        let outcome = run_exact(setup(StrategyChoice::Mediated), &mut local, &mut peer);
        measured.push((frame, local.queries, peer.queries, local.bytes + peer.bytes, outcome.concurrent));
    }
    println!("(frame, local queries, peer queries, bytes, waits for both at once): {measured:?}");
    assert!(measured.iter().all(|(_, local, peer, ..)| local + peer <= 12), "{measured:?}");
}

#[test]
fn large_sets_of_all_overlaps_are_settled_exactly() {
    let cases = [
        (50_000, 0, 1, 10_000_000),
        (50_000, 300, 20, 1_000),
        (0, 20_000, 0, 1_000_000),
        (0, 0, 20_000, 1_000_000),
        (0, 10_000, 10_000, 1_000_000),
        (10_000, 5_000, 5_000, 1),
        (20_000, 1_000, 10, 50),
    ];
    for (n, (common, local, peer, seconds)) in cases.into_iter().enumerate() {
        let frames = [(n % 4, (n + 1) % 4), ((n + 2) % 4, n % 4)];
        for (a, b) in frames {
            let (mut local, mut peer) = relays(n as u64, common, local, peer, seconds);
            (local.frame, peer.frame) = (FRAMES[a], FRAMES[b]);
            let outcome = run_exact(setup(StrategyChoice::Mediated), &mut local, &mut peer);
            assert_eq!(outcome.shown.local, !local.items.is_empty());
            assert_eq!(outcome.shown.peer, !peer.items.is_empty());
        }
    }
}

#[test]
fn both_sides_are_asked_at_once() {
    let (mut local, mut peer) = relays(3, 20_000, 2_000, 2_000, 1_000_000);
    (local.frame, peer.frame) = (60_000, 60_000);
    let outcome = run_exact(setup(StrategyChoice::Mediated), &mut local, &mut peer);
    assert!(outcome.concurrent > 10, "{outcome:?}");
}

/// A side without a frame limit would send all it has as one list.
#[test]
fn an_answer_that_does_not_get_through_is_asked_for_in_parts() {
    let (mut local, mut peer) = relays(5, 100, 50_000, 0, 1_000_000);
    local.longest_answer = Some(600_000);
    let outcome = run_exact(setup(StrategyChoice::Auto), &mut local, &mut peer);
    assert_eq!((outcome.strategy, local.pages), ("mediated", 0));
}

#[test]
fn an_inventory_costs_one_side_few_rounds() {
    let (mut local, mut peer) = relays(6, 50_000, 500, 500, 10_000_000);
    peer.frame = 500_000;
    let mut setup = setup(StrategyChoice::Inventory);
    setup.page_limit.local = 5_000;
    run_exact(setup, &mut local, &mut peer);
    println!("inventory: {} queries, {} bytes", peer.queries, peer.bytes);
    assert!(peer.queries <= 6);
}

#[test]
fn a_small_query_limit_is_kept() {
    let (mut local, mut peer) = relays(4, 5_000, 500, 500, 1_000_000);
    let mut setup = setup(StrategyChoice::Mediated);
    setup.max_query.peer = 1_000;
    run_exact(setup, &mut local, &mut peer);
    assert!(peer.longest_query <= 1_000 && local.longest_query > 1_000);
}

/// The items of two relays. Failures show how many, as all of them are no help.
struct Sets(Vec<Item>, Vec<Item>);

impl std::fmt::Debug for Sets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} and {} items", self.0.len(), self.1.len())
    }
}

/// Items of few seconds and few families of ids, on either side or both.
fn sets(most: usize) -> impl Strategy<Value = Sets> {
    let spread = prop_oneof![Just(1_u64), Just(4), Just(100_000)];
    let families = prop_oneof![Just(1_u8), Just(3), Just(255)];
    // How many of four are common: from none to all.
    let common = 0..=4_u8;
    (spread, families, common, 0..=most, any::<u64>()).prop_map(|(spread, families, common, most, seed)| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut local, mut peer) = (Vec::new(), Vec::new());
        for n in 0..most as u32 {
            let item = Item::new(NOW - rng.u64(..spread), id(rng.u8(..families), n));
            let both = rng.u8(..4) < common;
            let first = rng.bool();
            if both || first {
                local.push(item);
            }
            if both || !first {
                peer.push(item);
            }
        }
        Sets(local, peer)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_two_sets_are_settled_exactly(Sets(a, b) in sets(3_000), frames in (0..4_usize, 0..4_usize)) {
        let (mut local, mut peer) = (Relay::new(a), Relay::new(b));
        (local.frame, peer.frame) = (FRAMES[frames.0], FRAMES[frames.1]);
        run_exact(setup(StrategyChoice::Mediated), &mut local, &mut peer);
    }

    /// Most implementations compute the remainder's fingerprint wrongly in some way.
    #[test]
    fn a_wrong_remainder_loses_nothing(Sets(a, b) in sets(1_500), local_too in any::<bool>(), lie in 0..4_usize) {
        let (mut local, mut peer) = (Relay::new(a), Relay::new(b));
        let responder: Responder = [lies::<0>, lies::<1>, lies::<2>, lies::<3>][lie];
        peer.responder = Some(responder);
        if local_too {
            local.responder = Some(responder);
        }
        run_exact(setup(StrategyChoice::Mediated), &mut local, &mut peer);
    }

    /// Lost sessions cost queries, never ids.
    #[test]
    fn a_lost_session_loses_nothing(Sets(a, b) in sets(2_000), after in 0..6_usize, frame in 0..4_usize) {
        let (mut local, mut peer) = (Relay::new(a), Relay::new(b));
        for relay in [&mut local, &mut peer] {
            relay.frame = FRAMES[frame];
            relay.refuses_after = after;
            relay.refusals.push_back(crate::nostr::NegRefusal::Broken(crate::nostr::PeerText::new("closed: idle")));
        }
        let outcome = run_exact(setup(StrategyChoice::Auto), &mut local, &mut peer);
        prop_assert_eq!(outcome.strategy, "mediated");
    }

    /// One side listed, its ids answering for it.
    #[test]
    fn an_inventory_settles_any_two_sets(Sets(a, b) in sets(1_500), frame in 0..4_usize, held in 1..2_000_usize) {
        let (mut local, mut peer) = (Relay::new(a), Relay::new(b));
        peer.frame = FRAMES[frame];
        let mut setup = setup(StrategyChoice::Inventory);
        // A single second may hold ten times as many.
        setup.inventory_events = held.max(local.items.len() / 9);
        setup.page_limit.local = 2_000;
        run_exact(setup, &mut local, &mut peer);
        prop_assert_eq!(local.queries, 0);
    }
}

/// A responder with a frame limit of 4 kB that gets the fingerprint of the remainder wrong.
fn lies<const LIE: u8>(items: &[Item], query: &[u8]) -> Vec<u8> {
    const FRAME: usize = 4096 - 200;
    let point = |item: &Item| Bound { timestamp: item.at, id: *item.id.as_bytes() };
    let ids = |items: &[Item]| items.iter().map(|item| *item.id.as_bytes()).collect::<Vec<_>>();
    let mut sorted = items.to_vec();
    sorted.sort();
    let mut decoder = Decoder::new(query).unwrap();
    let mut out = Encoder::new();
    let mut lower = Bound::ZERO;
    while let Some(range) = decoder.next().unwrap() {
        let upper = range.upper;
        let at = |bound: &Bound| sorted.partition_point(|item| point(item) < *bound);
        let inside = &sorted[at(&lower)..at(&upper)];
        let mut full = false;
        match range.mode {
            Mode::Skip => {}
            Mode::Fingerprint(theirs) if theirs == fingerprint(&ids(inside)) => {}
            Mode::Fingerprint(_) if inside.len() < 32 => out.push(&lower, &upper, Mode::IdList(&ids(inside))),
            Mode::Fingerprint(_) => {
                let mut from = lower;
                for bucket in 1..=16 {
                    let (start, end) = ((bucket - 1) * inside.len() / 16, bucket * inside.len() / 16);
                    let to = inside.get(end).map_or(upper, point);
                    out.push(&from, &to, Mode::Fingerprint(fingerprint(&ids(&inside[start..end]))));
                    from = to;
                }
            }
            Mode::IdList(_) => {
                let room = (FRAME.saturating_sub(out.len()) / 32).max(1);
                let to = inside.get(room).map_or(upper, point);
                full = to < upper;
                out.push(&lower, &to, Mode::IdList(&ids(&inside[..room.min(inside.len())])));
            }
        }
        lower = upper;
        if full || out.len() > FRAME {
            let remainder = match LIE {
                // Of nothing, of all, of what comes after the range, of no set at all.
                0 => fingerprint(&[]),
                1 => fingerprint(&ids(&sorted)),
                2 => fingerprint(&ids(&sorted[at(&upper)..])),
                _ => [0; 16],
            };
            let end = out.end();
            out.push(&end, &Bound::INFINITY, Mode::Fingerprint(remainder));
            break;
        }
    }
    out.finish()
}

#[test]
fn what_lies_beyond_the_scope_is_left_alone() {
    let far = |n| Item::new(NOW + 86_401 + u64::from(n), id(9, n));
    for choice in [StrategyChoice::Mediated, StrategyChoice::Inventory, StrategyChoice::Paged] {
        let near = Item::new(NOW + 86_400, id(1, 1));
        let mut local = Relay::new((0..700).map(far).chain([near]));
        let mut peer = Relay::new([Item::new(u64::MAX - 1, id(2, 2)), Item::new(1, id(3, 3))]);
        let outcome = run_exact(setup(choice), &mut local, &mut peer);
        let expected: [(Side, EventId); 2] = [(Side::Local, id(1, 1)), (Side::Peer, id(3, 3))];
        assert_eq!(outcome.found, expected);
    }
}
