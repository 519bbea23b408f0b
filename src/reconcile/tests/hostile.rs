//! Relays whose answers are no answers: an error within bounds, never a panic, never a hang.

use proptest::prelude::*;

use std::collections::HashSet;

use super::super::mediated::Mediator;
use super::super::message::{Bound, Encoder, Mode, VERSION};
use super::super::*;
use super::model::*;
use crate::job_spec::StrategyChoice;
use crate::outcome::BySide;

fn mediator() -> Mediator {
    let domain = (Bound::at(0), Bound::at(NOW));
    Mediator::new(domain, Side::Local, BySide { local: 60_000, peer: 60_000 })
}

/// The error of a first answer made of these ranges.
fn first_answer(ranges: &[(Bound, Mode)]) -> Option<ExchangeError> {
    let mut mediator = mediator();
    mediator.next_query(Side::Local).expect("a first query");
    let mut encoder = Encoder::new();
    let mut lower = Bound::ZERO;
    for (upper, mode) in ranges {
        encoder.push(&lower, upper, *mode);
        lower = *upper;
    }
    mediator.on_answer(Side::Local, &encoder.finish(), &mut |_, _| {}).err()
}

#[test]
fn an_answer_that_does_not_fit_is_an_error() {
    let (half, end) = (Bound::at(NOW / 2), Bound::at(NOW));
    let print = Mode::Fingerprint([1; 16]);
    let violation = |what| Some(ExchangeError::Violation(what));
    let equal = violation("a fingerprint that nobody has is called equal");
    assert_eq!(first_answer(&[]), equal);
    assert_eq!(first_answer(&[(end, Mode::Skip)]), equal);
    assert_eq!(first_answer(&[(half, Mode::Skip), (end, print)]), violation("a range skipped in part"));
    assert_eq!(first_answer(&[(half, print)]), violation("a range skipped in part"));
    assert_eq!(first_answer(&[(Bound::INFINITY, Mode::IdList(&[]))]), violation("a list across ranges"));
    // Out of room before it began: asked again, it would say the same.
    assert_eq!(first_answer(&[(end, print)]), Some(ExchangeError::NoProgress));
    assert_eq!(first_answer(&[(Bound::INFINITY, print)]), Some(ExchangeError::NoProgress));
    assert_eq!(first_answer(&[(half, print), (Bound::INFINITY, print)]), None);
    assert_eq!(first_answer(&[(end, Mode::IdList(&[]))]), None);
}

#[test]
fn an_answer_without_a_query_is_an_error() {
    let mut mediator = mediator();
    let unasked = Err(ExchangeError::Unasked);
    assert_eq!(mediator.on_answer(Side::Peer, &[VERSION], &mut |_, _| {}), unasked);
    assert!(mediator.next_query(Side::Peer).is_none());
    let query = mediator.next_query(Side::Local);
    assert!(query.is_some() && mediator.next_query(Side::Local).is_none());
    // A lost session is asked the same again.
    mediator.reset(Side::Local);
    assert_eq!(mediator.next_query(Side::Local), query);
}

/// An endless pair ends in an error.
#[test]
fn a_range_is_not_divided_for_ever() {
    let halves: Responder = |_, query| {
        let mut decoder = super::super::message::Decoder::new(query).expect("our own query");
        let mut encoder = Encoder::new();
        let mut lower = Bound::ZERO;
        while let Ok(Some(range)) = decoder.next() {
            if range.mode != Mode::Skip {
                // As many parts as differ in the last bytes of the id.
                let mut middle = lower;
                middle.id[31] = middle.id[31].wrapping_add(1);
                if middle > lower && middle < range.upper {
                    encoder.push(&lower, &middle, Mode::Fingerprint([2; 16]));
                    encoder.push(&middle, &range.upper, Mode::Fingerprint([3; 16]));
                } else {
                    encoder.push(&lower, &range.upper, Mode::IdList(&[]));
                }
            }
            lower = range.upper;
        }
        encoder.finish()
    };
    let (mut local, mut peer) = (Relay::default(), Relay::default());
    (local.responder, peer.responder) = (Some(halves), Some(halves));
    let error = run(setup(StrategyChoice::Auto), &mut local, &mut peer).unwrap_err();
    assert!(matches!(error, ReconcileError::Exchange { error: ExchangeError::Limit(_), .. }), "{error}");
    assert!(local.queries + peer.queries <= 66);
}

#[test]
fn a_side_that_repeats_an_id_hides_none() {
    let mut peer = Relay::default();
    peer.responder = Some(|_, query| {
        let mut decoder = super::super::message::Decoder::new(query).expect("our own query");
        let mut encoder = Encoder::new();
        let mut lower = Bound::ZERO;
        while let Ok(Some(range)) = decoder.next() {
            if range.mode != Mode::Skip {
                encoder.push(&lower, &range.upper, Mode::IdList(&[[7; 32], [7; 32]]));
            }
            lower = range.upper;
        }
        encoder.finish()
    });
    let mut local = Relay::new((0..100).map(|n| Item::new(u64::from(n), id(0, n))));
    let outcome = run(setup(StrategyChoice::Auto), &mut local, &mut peer).unwrap();
    // The job looks each id up before it moves it: that it is repeated here costs nothing else.
    let found: HashSet<_> = outcome.found.iter().collect();
    assert_eq!(found.iter().filter(|(side, _)| *side == Side::Peer).count(), 1);
    assert_eq!(found.len(), 101);
}

/// What is done to honest answers.
#[derive(Clone, Copy, Debug)]
enum Mischief {
    /// The query itself comes back.
    Mirror,
    /// Cut after some bytes.
    Cut(usize),
    /// One byte is another.
    Change(usize, u8),
    /// Two stretches change places.
    Disorder(usize),
    /// Bytes follow the end.
    Append(u8),
    /// The last answer once more.
    Repeat,
}

fn mischief() -> impl Strategy<Value = Mischief> {
    prop_oneof![
        Just(Mischief::Mirror),
        (0..3_000_usize).prop_map(Mischief::Cut),
        (0..3_000_usize, any::<u8>()).prop_map(|(at, byte)| Mischief::Change(at, byte)),
        (1..3_000_usize).prop_map(Mischief::Disorder),
        any::<u8>().prop_map(Mischief::Append),
        Just(Mischief::Repeat),
    ]
}

fn spoil(mischief: Mischief, query: &[u8], answer: &mut Vec<u8>, last: &[u8]) {
    let len = answer.len().max(1);
    match mischief {
        Mischief::Mirror => *answer = query.to_vec(),
        Mischief::Cut(at) => answer.truncate(at % len),
        Mischief::Change(at, byte) => answer[at % len] = byte,
        Mischief::Disorder(at) => answer[1.min(len - 1)..].rotate_left(at % len.saturating_sub(1).max(1)),
        Mischief::Append(byte) => answer.push(byte),
        Mischief::Repeat => *answer = last.to_vec(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every third answer, from the first, the second or the third on, is spoilt.
    #[test]
    fn spoilt_answers_end(seed in any::<u64>(), mischief in mischief(), from in 0..3_usize, frame in 0..2_u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut relay = || {
            let mut relay = Relay::new((0..600).map(|n| Item::new(rng.u64(..NOW), id(0, n + rng.u32(..50)))));
            relay.frame = frame * 4096;
            relay
        };
        let mut relays = BySide { local: relay(), peer: relay() };
        let mut reconciliation = Reconciliation::new(setup(StrategyChoice::Mediated));
        let mut last = vec![VERSION];
        let mut asked = Vec::new();
        let mut answers = 0;
        for _ in 0..100_000 {
            match reconciliation.poll() {
                Some(Action::Ask(side, question)) => asked.push((side, question)),
                Some(Action::Found { .. }) => {}
                Some(Action::Done) => return Ok(()),
                None => {
                    prop_assert!(!asked.is_empty(), "a hang");
                    let (side, question) = asked.remove(0);
                    let mut answer = relays[side].answer(&question);
                    if let (Answer::Neg(answer), Question::Neg { message, .. }) = (&mut answer, &question) {
                        if answers % 3 == from {
                            spoil(mischief, message, answer, &last);
                        }
                        last.clone_from(answer);
                    }
                    answers += 1;
                    if reconciliation.handle(side, answer).is_err() {
                        prop_assert_eq!(reconciliation.poll(), None);
                        return Ok(());
                    }
                }
            }
        }
        prop_assert!(false, "no end");
    }
}
