//! Relays that refuse.

use proptest::prelude::*;

use super::super::*;
use super::model::*;
use crate::job_spec::StrategyChoice;

/// 100 events on both sides and 10 on each alone, in 30 seconds.
fn relays() -> (Relay, Relay) {
    let item = |n| Item::new(NOW - u64::from(n) % 30, id(0, n));
    (Relay::new((0..110).map(item)), Relay::new((10..120).map(item)))
}

fn text(text: &str) -> PeerText {
    PeerText::new(text)
}

const AUTO: StrategyChoice = StrategyChoice::Auto;

/// Runs with one side that refuses `refusal` this often, after so many answers.
fn refused(
    choice: StrategyChoice,
    side: Side,
    refusal: &NegRefusal,
    times: usize,
    after: usize,
) -> (Result<Outcome, ReconcileError>, Relay, Relay) {
    let (mut local, mut peer) = relays();
    let relay = if side == Side::Local { &mut local } else { &mut peer };
    relay.refuses_after = after;
    relay.refusals = std::iter::repeat_n(refusal.clone(), times).collect();
    let expected = difference(&setup(choice), &local, &peer);
    let result = run(setup(choice), &mut local, &mut peer).map(|mut outcome| {
        outcome.found.sort();
        assert_eq!(outcome.found, expected, "{side} {refusal:?} {times} {after}");
        outcome
    });
    (result, local, peer)
}

/// Refusals, how often each is asked again, and whether the side is listed then.
fn arms() -> [(NegRefusal, usize); 4] {
    [
        (NegRefusal::Unsupported(text("no")), 0),
        (NegRefusal::Silent, 0),
        (NegRefusal::Broken(text("closed: idle")), 1),
        (NegRefusal::Busy(text("too many concurrent")), 3),
    ]
}

#[test]
fn a_side_that_refuses_is_listed() {
    for side in Side::BOTH {
        for (refusal, tries) in arms() {
            // The local relay is asked first, and once more at the end.
            for after in 0..if side == Side::Local { 2 } else { 1 } {
                let (result, ..) = refused(AUTO, side, &refusal, tries, after);
                assert_eq!(result.unwrap().strategy, "mediated", "{refusal:?} {tries} times");
                let (result, local, peer) = refused(AUTO, side, &refusal, tries + 1, after);
                let outcome = result.unwrap();
                assert_eq!(outcome.strategy, "inventory", "{refusal:?}");
                assert!(outcome.refused[side] && !outcome.refused[side.other()]);
                let (listed, other) = if side == Side::Local { (local, peer) } else { (peer, local) };
                assert!(listed.pages > 0 && other.pages == 0);
            }
        }
    }
}

#[test]
fn two_sides_that_refuse_are_both_listed() {
    for (refusal, tries) in arms() {
        let (mut local, mut peer) = relays();
        for relay in [&mut local, &mut peer] {
            relay.refusals = std::iter::repeat_n(refusal.clone(), tries + 1).collect();
        }
        let outcome = run_exact(setup(AUTO), &mut local, &mut peer);
        assert_eq!(outcome.strategy, "paged");
        assert!(outcome.refused.local && outcome.refused.peer);
    }
}

#[test]
fn what_is_known_is_not_asked_for() {
    for (local_speaks, peer_speaks, strategy) in
        [(true, true, "mediated"), (false, true, "inventory"), (true, false, "inventory"), (false, false, "paged")]
    {
        let (mut local, mut peer) = relays();
        let mut setup = setup(AUTO);
        setup.speaks_nip77 = crate::outcome::BySide { local: local_speaks, peer: peer_speaks };
        assert_eq!(Reconciliation::new(setup.clone()).strategy(), strategy);
        let outcome = run_exact(setup, &mut local, &mut peer);
        assert_eq!(outcome.strategy, strategy);
        assert_eq!((local.queries > 0, peer.queries > 0), (local_speaks, peer_speaks));
        assert_eq!((local.pages > 0, peer.pages > 0), (!local_speaks, !peer_speaks));
    }
}

#[test]
fn a_forced_strategy_falls_no_further() {
    for (refusal, tries) in arms() {
        for side in Side::BOTH {
            let (result, ..) = refused(StrategyChoice::Mediated, side, &refusal, tries + 1, 0);
            let refusal = refusal.clone();
            assert_eq!(result.unwrap_err(), ReconcileError::Refused { side, refusal, strategy: "mediated" });
        }
        let (result, ..) = refused(StrategyChoice::Inventory, Side::Peer, &refusal, tries + 1, 0);
        let strategy = "inventory";
        assert_eq!(result.unwrap_err(), ReconcileError::Refused { side: Side::Peer, refusal, strategy });
    }
    let (result, _, peer) = refused(StrategyChoice::Paged, Side::Peer, &NegRefusal::Silent, 1, 0);
    assert_eq!((result.unwrap().strategy, peer.queries), ("paged", 0));
}

#[test]
fn a_filter_that_is_not_served_is_an_error() {
    let refusal = NegRefusal::Restricted(text("restricted: members only"));
    let (result, ..) = refused(AUTO, Side::Peer, &refusal, 1, 0);
    let error = result.unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("the peer relay does not serve this filter (restricted: members only)"), "{message}");
    assert!(message.contains("ask its operator"), "{message}");
}

#[test]
fn another_version_is_no_support() {
    let (mut local, mut peer) = relays();
    peer.responder = Some(|_, _| vec![0x62]);
    let outcome = run_exact(setup(AUTO), &mut local, &mut peer);
    assert!(outcome.strategy == "inventory" && outcome.refused.peer);
}

#[test]
fn a_side_that_takes_less_is_asked_for_less() {
    for (says_max, says_found) in [(false, false), (true, false), (true, true)] {
        let (mut local, mut peer) = relays();
        peer.max_sync = Some(MaxSync { events: 20, says_max, says_found });
        let outcome = run_exact(setup(AUTO), &mut local, &mut peer);
        assert_eq!((outcome.strategy, local.pages, peer.pages), ("mediated", 0, 0));
        assert!(!outcome.refused.peer);
    }
}

#[test]
fn a_second_too_big_is_listed_and_no_other() {
    let dense = |n| Item::new(NOW - 40, id(1, n));
    for choice in [AUTO, StrategyChoice::Inventory] {
        let (mut local, mut peer) = relays();
        local.items.extend((0..90).map(dense));
        peer.items.extend((10..100).map(dense));
        peer.max_sync = Some(MaxSync { events: 20, says_max: true, says_found: true });
        let outcome = run_exact(setup(choice), &mut local, &mut peer);
        assert!(peer.pages == 2 && !outcome.refused.peer, "{} {outcome:?}", peer.pages);
    }
    let (mut local, mut peer) = relays();
    local.items.extend((0..90).map(dense));
    local.max_sync = Some(MaxSync { events: 20, says_max: true, says_found: true });
    let error = run(setup(StrategyChoice::Mediated), &mut local, &mut peer).unwrap_err();
    assert!(matches!(error, ReconcileError::Refused { side: Side::Local, strategy: "mediated", .. }));
}

#[test]
fn a_side_that_takes_nothing_is_listed_in_the_end() {
    for side in Side::BOTH {
        let too_big = NegRefusal::TooBig { max: None, found: None };
        let (result, local, peer) = refused(AUTO, side, &too_big, 1_000, 0);
        let outcome = result.unwrap();
        assert!(outcome.refused[side], "{outcome:?}");
        assert!(local.pages + peer.pages < 200, "{} {}", local.pages, peer.pages);
        let (result, ..) = refused(StrategyChoice::Inventory, Side::Peer, &too_big, 1_000, 0);
        assert!(matches!(result, Err(ReconcileError::Refused { side: Side::Peer, .. })));
    }
}

#[test]
fn an_answer_that_nothing_was_asked_for_is_an_error() {
    let mut reconciliation = Reconciliation::new(setup(AUTO));
    let unasked = Err(ReconcileError::Unasked { side: Side::Peer });
    assert_eq!(reconciliation.handle(Side::Peer, Answer::Neg(vec![0x61])), unasked);
    assert_eq!(reconciliation.poll(), None);
    let mut reconciliation = Reconciliation::new(setup(AUTO));
    let Some(Action::Ask(side, _)) = reconciliation.poll() else { panic!("no question") };
    let page = Answer::Page(Page::default());
    assert_eq!(reconciliation.handle(side, page), Err(ReconcileError::Unasked { side }));
    let mut reconciliation = Reconciliation::new(setup(StrategyChoice::Paged));
    let Some(Action::Ask(side, _)) = reconciliation.poll() else { panic!("no question") };
    let refusal = Answer::Refused(NegRefusal::Silent);
    assert_eq!(reconciliation.handle(side, refusal), Err(ReconcileError::Unasked { side }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Refusals at any time, of any kind, on both sides, with any size limit.
    #[test]
    fn no_refusal_loses_an_id(
        kinds in prop::collection::vec(0..5_usize, 0..6),
        after in (0..5_usize, 0..5_usize),
        max in prop::option::of(1..150_usize),
        frame in prop_oneof![Just(0_u64), Just(4096)],
    ) {
        let (mut local, mut peer) = relays();
        let refusal = |kind: usize| arms().get(kind).map_or(
            NegRefusal::TooBig { max: None, found: None },
            |(refusal, _)| refusal.clone(),
        );
        local.refusals = kinds.iter().map(|kind| refusal(*kind)).collect();
        peer.refusals = kinds.iter().rev().map(|kind| refusal(*kind)).collect();
        (local.refuses_after, peer.refuses_after) = after;
        peer.max_sync = max.map(|events| MaxSync { events, says_max: true, says_found: true });
        (local.frame, peer.frame) = (frame, frame);
        run_exact(setup(AUTO), &mut local, &mut peer);
    }
}
