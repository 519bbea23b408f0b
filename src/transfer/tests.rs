use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::nostr::Prefix;

const LIMITS: TransferLimits = TransferLimits {
    batch: 500,
    fetches_in_flight: 4,
    publishes_in_flight: 256,
    spool_bytes: 1 << 20,
    refusals_in_a_row: REFUSALS_IN_A_ROW,
};

fn id(n: u32) -> EventId {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    EventId::new(bytes)
}

fn good(id: EventId, created_at: u64) -> Checked {
    Checked { id, verdict: Verdict::Publish { raw: "x".repeat(100).into(), created_at, replaceable: false } }
}

fn ok(text: &str) -> Option<(bool, Reason)> {
    Some((true, Reason::parse(text)))
}

fn no(text: &str) -> Option<(bool, Reason)> {
    Some((false, Reason::parse(text)))
}

/// Runs a transfer to its end against a source and a destination given as functions.
fn run(
    limits: TransferLimits,
    ids: impl IntoIterator<Item = EventId>,
    mut source: impl FnMut(&[EventId]) -> Vec<Checked>,
    mut destination: impl FnMut(EventId) -> Option<(bool, Reason)>,
) -> (BTreeMap<EventId, (Outcome, Option<ParkReason>)>, Transfer) {
    let mut transfer = Transfer::new(limits);
    ids.into_iter().for_each(|id| transfer.want(id));
    transfer.no_more();
    let mut outcomes = BTreeMap::new();
    let mut fetches = VecDeque::new();
    let mut publishes = VecDeque::new();
    while !transfer.is_done() {
        match transfer.poll() {
            Some(Action::Fetch { batch, ids }) => fetches.push_back((batch, source(&ids))),
            Some(Action::Publish { id, .. }) => publishes.push_back(id),
            Some(Action::Settle { id, outcome, park }) => {
                assert_eq!(outcomes.insert(id, (outcome, park)), None, "an id has two outcomes");
            }
            None => match (publishes.pop_front(), fetches.pop_front()) {
                (Some(id), fetch) => {
                    fetch.into_iter().for_each(|fetch| fetches.push_front(fetch));
                    transfer.acked(id, destination(id), Duration::ZERO);
                }
                (None, Some((batch, checked))) => transfer.fetched(batch, checked),
                (None, None) => panic!("the transfer waits for nothing"),
            },
        }
    }
    (outcomes, transfer)
}

#[test]
fn what_an_ok_means() {
    use Outcome::{Duplicate, Failed, Refused, Stored};
    let hidden = |prefix| (Refused(prefix), Some(ParkReason::Hidden(prefix)));
    let refused = |prefix| (Refused(prefix), Some(ParkReason::Refused(prefix)));
    let table = [
        (ok(""), (Stored, None)),
        (ok("anything: else"), (Stored, None)),
        (ok("duplicate: have it"), (Duplicate, None)),
        (ok("purgatory: awaiting git data"), hidden(Prefix::Purgatory)),
        (ok("mute: nobody heard"), hidden(Prefix::Mute)),
        (no("duplicate: exists"), (Duplicate, Some(ParkReason::Refused(Prefix::Duplicate)))),
        (no("replaced: have newer event"), refused(Prefix::Replaced)),
        (no("deleted: user requested deletion"), refused(Prefix::Deleted)),
        (no("invalid: bad signature"), refused(Prefix::Invalid)),
        (no("invalid: created_at too far in the future"), (Refused(Prefix::Invalid), Some(ParkReason::Early))),
        (no("blocked: not you"), refused(Prefix::Blocked)),
        (no("restricted: members only"), refused(Prefix::Restricted)),
        (no("pow: 28 bits needed"), refused(Prefix::Pow)),
        (no("error: database is locked"), (Failed, None)),
        (no("whatever"), (Failed, None)),
        (None, (Failed, None)),
    ];
    for (answer, expected) in table {
        let text = format!("{answer:?}");
        let (outcomes, _) = run(LIMITS, [id(1)], |ids| ids.iter().map(|id| good(*id, 1)).collect(), |_| answer.clone());
        assert_eq!(outcomes[&id(1)], expected, "{text}");
    }
}

#[test]
fn what_rust_nostr_says_of_a_superseded_event_is_a_refusal() {
    let superseded = |replaceable| judge(false, &Reason::parse("error: unknown"), replaceable);
    let replaced = Outcome::Refused(Prefix::Replaced);
    assert_eq!(superseded(true), Judgement::Settle(replaced, Some(ParkReason::Refused(Prefix::Replaced))));
    assert_eq!(superseded(false), Judgement::Settle(Outcome::Failed, None));
}

#[test]
fn ids_that_do_not_come_are_asked_for_once_more_in_fifties() {
    let mut batches = Vec::new();
    let (outcomes, _) = run(
        LIMITS,
        (0..500).map(id),
        |ids| {
            batches.push(ids.len());
            // Comes on the second try only.
            if batches.len() > 1 {
                ids.iter().filter(|i| **i != id(3)).map(|id| good(*id, 1)).collect()
            } else {
                vec![]
            }
        },
        |_| ok(""),
    );
    assert!(batches.iter().skip(1).any(|size| *size == 50), "{batches:?}");
    assert_eq!(outcomes[&id(3)], (Outcome::Vanished, Some(ParkReason::Vanished)));
    assert_eq!(outcomes.values().filter(|(outcome, _)| *outcome == Outcome::Stored).count(), 499);
}

#[test]
fn within_a_batch_the_oldest_goes_first() {
    let mut order = Vec::new();
    run(
        LIMITS,
        (0..100).map(id),
        |ids| ids.iter().enumerate().map(|(n, id)| good(*id, 1000 - n as u64)).collect(),
        |id| {
            order.push(id);
            ok("")
        },
    );
    let expected: Vec<_> = (0..100).rev().map(id).collect();
    assert_eq!(order, expected);
}

#[test]
fn a_relay_that_asks_to_slow_down_gets_everything_in_the_end() {
    // Takes 60, refuses a few, takes 60 again: as a relay looks that is asked after a cooldown.
    let mut left = 60;
    let mut refused_in_a_row = 0;
    let (outcomes, transfer) = run(
        LIMITS,
        (0..1000).map(id),
        |ids| ids.iter().map(|id| good(*id, 1)).collect(),
        |_| {
            if left > 0 {
                left -= 1;
                refused_in_a_row = 0;
                return ok("");
            }
            refused_in_a_row += 1;
            if refused_in_a_row > 3 {
                left = 60;
            }
            no("rate-limited: slow down")
        },
    );
    assert!(transfer.stopped().is_none());
    assert!(outcomes.values().all(|(outcome, _)| *outcome == Outcome::Stored));
}

#[test]
fn a_relay_that_takes_nothing_is_left_alone() {
    for answer in ["rate-limited: never", "blocked: never"] {
        let mut offered = HashSet::new();
        let (outcomes, transfer) = run(
            LIMITS,
            (0..5000).map(id),
            |ids| ids.iter().map(|id| good(*id, 1)).collect(),
            |id| {
                offered.insert(id);
                no(answer)
            },
        );
        assert_eq!(outcomes.len(), 5000);
        assert!(offered.len() <= 512, "{answer}: {} events were offered", offered.len());
        assert!(transfer.stopped().is_some());
        assert!(outcomes.values().any(|(outcome, _)| *outcome == Outcome::Failed));
    }
}

#[test]
fn what_is_closed_waits_for_what_was_offered_and_no_more() {
    let mut transfer = Transfer::new(LIMITS);
    (0..2000).map(id).for_each(|id| transfer.want(id));
    let Some(Action::Fetch { batch, ids }) = transfer.poll() else { panic!() };
    transfer.fetched(batch, ids.iter().map(|id| good(*id, 1)).collect());
    let mut offered = Vec::new();
    while let Some(action) = transfer.poll() {
        if let Action::Publish { id, .. } = action {
            offered.push(id);
        }
    }
    transfer.close();
    transfer.want(id(3000));
    let mut failed = 0;
    while let Some(action) = transfer.poll() {
        let Action::Settle { outcome: Outcome::Failed, .. } = action else { panic!("{action:?}") };
        failed += 1;
    }
    assert!(!transfer.is_done(), "their OKs are still to come");
    offered.iter().for_each(|id| transfer.acked(*id, ok(""), Duration::ZERO));
    let stored = std::iter::from_fn(|| transfer.poll()).count();
    assert_eq!(stored, offered.len());
    // Batches under way at the source are waited for as well.
    assert!(failed + stored < 2001 && !transfer.is_done());
}

#[test]
fn heavy_events_come_in_small_batches() {
    let limits = TransferLimits { spool_bytes: 1 << 20, ..LIMITS };
    let mut last = 0;
    run(
        limits,
        (0..3000).map(id),
        |ids| {
            last = ids.len();
            let raw: Box<str> = "x".repeat(64 << 10).into();
            let heavy = |id: &EventId| Checked {
                id: *id,
                verdict: Verdict::Publish { raw: raw.clone(), created_at: 1, replaceable: false },
            };
            ids.iter().map(heavy).collect()
        },
        |_| ok(""),
    );
    assert!(last <= 4, "{last} events of 64 kB at once");
}

proptest! {
    /// Whatever the relays do, every id ends in exactly one outcome.
    #[test]
    fn every_id_has_one_outcome(
        count in 0_u32..2000,
        batch in 1_usize..600,
        window in 1_usize..300,
        fetches in 1_usize..6,
        seed: u64,
    ) {
        let mut state = seed | 1;
        let mut dice = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let mut second = dice;
        let limits = TransferLimits {
            batch,
            fetches_in_flight: fetches,
            publishes_in_flight: window,
            spool_bytes: 100_000,
            refusals_in_a_row: REFUSALS_IN_A_ROW,
        };
        let (outcomes, _) = run(
            limits,
            (0..count).map(id),
            |ids| {
                ids.iter()
                    .filter_map(|id| match dice() % 10 {
                        0 => None,
                        1 => Some(Checked { id: *id, verdict: Verdict::Skip(Skip::Expired) }),
                        n => Some(good(*id, n)),
                    })
                    .collect()
            },
            |_| match second() % 8 {
                0 => None,
                1 => no("rate-limited: x"),
                2 => no("blocked: x"),
                3 => no("error: x"),
                _ => ok(""),
            },
        );
        prop_assert_eq!(outcomes.len(), count as usize);
    }
}
