use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::budget::Budget;
use super::*;
use crate::config::GatewayLimits;
use crate::metrics::GatewayMetrics;

const START: u64 = 1_700_000_000;

/// How a relay answers.
#[derive(Clone, Debug)]
struct Habits {
    cap: usize,
    excludes_until: bool,
    ties_reversed: bool,
    hints: bool,
}

fn event(n: u64, at: u64, kind: u16, author: u8) -> Event {
    let pubkey = format!("{author:02x}").repeat(32);
    let content = n.to_string();
    let tags = json!([["t", (n % 3).to_string()]]);
    let id = hex::encode(Sha256::digest(json!([0, pubkey, at, kind, tags, content]).to_string()));
    let event = json!({
        "id": id, "pubkey": pubkey, "created_at": at, "kind": kind, "tags": tags, "content": content,
        "sig": "0".repeat(128),
    });
    Event::parse(&event.to_string()).unwrap()
}

fn ids<'e>(events: impl IntoIterator<Item = &'e Event>) -> BTreeSet<Item> {
    events.into_iter().map(|event| (event.created_at(), event.id())).collect()
}

/// What a REQ with this filter returns.
fn answer<'e>(events: &'e [Event], asked: &Value, habits: &Habits) -> (Vec<&'e Event>, bool) {
    let mut asked = asked.clone();
    let limit =
        asked.as_object_mut().unwrap().remove("limit").map_or(usize::MAX, |limit| limit.as_u64().unwrap() as usize);
    let filter = Filter::from_value(&asked).unwrap();
    let in_time =
        |event: &Event| !habits.excludes_until || filter.until().is_none_or(|until| event.created_at() < until);
    let mut found: Vec<_> = events.iter().filter(|event| filter.matches(event) && in_time(event)).collect();
    found.sort_by(|a, b| {
        let ties = a.id().cmp(&b.id());
        b.created_at().cmp(&a.created_at()).then(if habits.ties_reversed { ties.reverse() } else { ties })
    });
    let all = found.len();
    found.truncate(limit.min(habits.cap));
    let complete = found.len() == all;
    (found, complete)
}

struct Outcome {
    result: Result<Vec<Vec<Item>>, Refusal>,
    known: Known,
    closed: usize,
    asked: Vec<Value>,
}

fn list(events: &[Event], filter: &Value, habits: &Habits, known: Known, most: usize) -> Outcome {
    let limits = GatewayLimits::default();
    let budget = Budget::new(&limits, GatewayMetrics::default());
    let frame = json!(["NEG-OPEN", "a", filter, "61"]).to_string();
    let super::super::message::NegMessage::Open { wanted, .. } =
        super::super::message::NegMessage::parse(&frame).unwrap()
    else {
        panic!()
    };
    let (mut names, now) = (Names::new(7), crate::clock::instant());
    let mut listing = Listing::new(1, wanted, known, most, budget.memory(), now);
    assert_eq!(listing.start(&mut names), Step::Wait);
    let (mut closed, mut asked) = (0, Vec::new());
    let mut frames = |listing: &mut Listing| -> Vec<Value> {
        let frames = std::iter::from_fn(|| listing.poll()).map(|frame| serde_json::from_str(&frame).unwrap());
        let (closes, requests): (Vec<Value>, Vec<Value>) = frames.partition(|frame: &Value| frame[0] == "CLOSE");
        closed += closes.len();
        requests
    };
    let result = loop {
        let requests = frames(&mut listing);
        let [frame] = requests.as_slice() else { panic!("one at a time: {requests:?}") };
        let name = frame[1].as_str().unwrap();
        assert!(name.len() <= 64);
        asked.push(frame[2].clone());
        let (found, complete) = answer(events, &frame[2], habits);
        let mut step = Ok(Step::Wait);
        let mut said: Vec<_> = found.iter().map(|event| format!(r#"["EVENT","{name}",{}]"#, event.raw())).collect();
        said.push(if habits.hints {
            json!(["EOSE", name, [if complete { "finish" } else { "more" }]]).to_string()
        } else {
            json!(["EOSE", name]).to_string()
        });
        for said in &said {
            assert!(matches!(step, Ok(Step::Wait)), "an answer before its end");
            step = listing.take(RelayMessage::parse(said).unwrap(), &mut names, now);
            if step.is_err() {
                break;
            }
        }
        // What comes after the end of it changes nothing.
        let late = json!(["CLOSED", name, ""]).to_string();
        assert!(
            matches!(listing.take(RelayMessage::parse(&late).unwrap(), &mut names, now), Ok(Step::Wait))
                || step.is_err()
        );
        match step {
            Ok(Step::Wait) => {}
            Ok(Step::Done) => break Ok(()),
            Err(refusal) => break Err(refusal),
        }
    };
    listing.close();
    assert_eq!(frames(&mut listing), Vec::<Value>::new());
    let known = listing.known();
    Outcome { result: result.map(|()| listing.finish().0), known, closed, asked }
}

const UNKNOWN: Known = Known { page: PageSize { limit: 500, largest: 0 }, excludes_until: None };

fn habits() -> impl Strategy<Value = Habits> {
    let cap = prop_oneof![Just(50_usize), Just(100), Just(5000)];
    (cap, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(cap, excludes_until, ties_reversed, hints)| Habits {
        cap,
        excludes_until,
        ties_reversed,
        hints,
    })
}

fn filters() -> impl Strategy<Value = Value> {
    let part = |key: &'static str, values: Vec<Value>| {
        proptest::sample::subsequence(values, 0..3).prop_map(move |values| (key, values))
    };
    let authors = (1..4_u8).map(|n| json!(format!("{n:02x}").repeat(32))).collect();
    let tags = ["0", "1", "2"].map(|tag| json!(tag)).to_vec();
    let span = proptest::option::of(0..30_u64);
    (part("kinds", vec![json!(1), json!(5), json!(7)]), part("authors", authors), part("#t", tags), span.clone(), span)
        .prop_map(|(kinds, authors, tags, since, length)| {
            let mut filter = json!({});
            for (key, values) in [kinds, authors, tags] {
                if !values.is_empty() {
                    filter[key] = json!(values);
                }
            }
            if let Some(since) = since {
                filter["since"] = json!(START + since);
            }
            if let Some(length) = length {
                filter["until"] = json!(START + since.unwrap_or(0) + length);
            }
            filter
        })
}

proptest! {
    /// Over any events, many of one second, and any filter: what is listed is what one REQ without
    /// a cap returns; or a second really holds as much as the relay lists at once, and that is said.
    #[test]
    fn what_is_listed_is_what_req_returns(
        events in vec((0..40_u64, 0..3_usize, 1..4_u8), 0..260),
        spread in prop_oneof![Just(1_u64), Just(8), Just(40)],
        filter in filters(),
        habits in habits(),
        known in any::<bool>(),
    ) {
        let events: Vec<_> = (0..).zip(&events)
            .map(|(n, &(at, kind, author))| event(n, START + at % spread, [1, 5, 7][kind], author))
            .collect();
        let expected = ids(events.iter().filter(|event| Filter::from_value(&filter).unwrap().matches(event)));
        let known = Known { excludes_until: known.then_some(habits.excludes_until), ..UNKNOWN };
        let outcome = list(&events, &filter, &habits, known, 1_000_000);
        prop_assert_eq!(outcome.closed, outcome.asked.len(), "the relay is left with none of them");
        match outcome.result {
            Ok(pages) => {
                let listed: Vec<_> = pages.into_iter().flatten().collect();
                prop_assert!(listed.is_sorted_by(|a, b| a.0 >= b.0), "newest first");
                prop_assert_eq!(listed.len(), expected.len(), "each once");
                prop_assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);

            }
            Err(Refusal::Dense { second, .. }) => {
                let dense = expected.iter().filter(|item| item.0 == second).count();
                prop_assert!(dense >= habits.cap, "{} of {}", dense, habits.cap);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}

#[test]
fn whether_until_is_excluded_is_learnt_from_an_event() {
    for excludes_until in [false, true] {
        let habits = Habits { cap: 5000, excludes_until, ties_reversed: false, hints: false };
        let events: Vec<_> = (0..30).map(|n| event(n, START + n / 3, 1, 1)).collect();
        let filter = json!({"kinds": [1], "until": START + 5});
        let outcome = list(&events, &filter, &habits, UNKNOWN, 100);
        assert_eq!(outcome.result.unwrap().iter().map(Vec::len).sum::<usize>(), 18);
        assert_eq!(outcome.known.excludes_until, Some(excludes_until));
        // Any event, that event by its second, and one second later.
        let probes = if excludes_until { 3 } else { 2 };
        assert_eq!(outcome.asked[probes]["until"], START + 5 + u64::from(excludes_until));
        // What is known is not asked for again.
        let outcome = list(&events, &filter, &habits, outcome.known, 100);
        assert_eq!(outcome.asked[0]["until"], START + 5 + u64::from(excludes_until));
        // Nothing that is served here proves anything to others.
        let outcome = list(&events, &json!({"kinds": [5], "until": START + 5}), &habits, UNKNOWN, 100);
        assert_eq!((outcome.result.unwrap().len(), outcome.known.excludes_until), (0, None));
    }
}

#[test]
fn the_most_is_the_most() {
    let habits = Habits { cap: 100, excludes_until: false, ties_reversed: false, hints: false };
    let events: Vec<_> = (0..300).map(|n| event(n, START + n, 1, 1)).collect();
    for (most, fits) in [(300, true), (299, false), (1, false)] {
        let outcome = list(&events, &json!({"kinds": [1]}), &habits, UNKNOWN, most);
        assert_eq!(outcome.result.is_ok(), fits, "{most}");
        if let Err(refusal) = outcome.result {
            assert_eq!(refusal, Refusal::Events { max: most });
        }
        let outcome =
            list(&events, &json!({"kinds": [1], "limit": 300}), &Habits { cap: 300, ..habits.clone() }, UNKNOWN, most);
        assert_eq!(outcome.result.is_ok(), fits, "{most}");
    }
}

#[test]
fn a_limit_is_the_relay_s_to_read() {
    let habits = Habits { cap: 100, excludes_until: false, ties_reversed: true, hints: false };
    let events: Vec<_> = (0..30).map(|n| event(n, START + n / 10, 1, 1)).collect();
    let filter = json!({"kinds": [1], "limit": 7, "until": START + 1});
    let outcome = list(&events, &filter, &habits, UNKNOWN, 100);
    let listed: BTreeSet<_> = outcome.result.unwrap().into_iter().flatten().collect();
    assert_eq!(listed, ids(answer(&events, &filter, &habits).0));
    assert_eq!(outcome.asked, [filter], "once, and as it was written");
}

#[test]
fn what_cannot_be_listed_is_said() {
    let limits = GatewayLimits::default();
    let budget = Budget::new(&limits, GatewayMetrics::default());
    let now = crate::clock::instant();
    let start = || {
        let (mut names, wanted) =
            (Names::new(7), Wanted { filter: r#"{"kinds":[1]}"#.parse().unwrap(), limited: None });
        let mut listing = Listing::new(1, wanted, UNKNOWN, 100_000, budget.memory(), now);
        listing.start(&mut names);
        let name = serde_json::from_str::<Value>(&listing.poll().unwrap()).unwrap()[1].as_str().unwrap().to_owned();
        (listing, names, name)
    };
    let (mut listing, mut names, name) = start();
    assert_eq!(listing.tick(now + ANSWER - Duration::from_millis(1)), Ok(()));
    assert_eq!(listing.tick(now + ANSWER), Err(Refusal::Silent(ANSWER)));
    listing.close();
    listing.close();
    assert_eq!((listing.poll(), listing.poll()), (Some(format!(r#"["CLOSE","{name}"]"#)), None));
    let (event, later) = (event(1, START, 1, 1), now + ANSWER);
    let said = format!(r#"["EVENT","{name}",{}]"#, event.raw());
    listing.take(RelayMessage::parse(&said).unwrap(), &mut names, later).unwrap();

    // Anything under another name is old.
    let (mut listing, mut names, name) = start();
    let other = json!(["CLOSED", "x", "error: y"]).to_string();
    assert!(matches!(listing.take(RelayMessage::parse(&other).unwrap(), &mut names, now), Ok(Step::Wait)));
    let closed = json!(["CLOSED", name, "restricted: no"]).to_string();
    let refusal = listing.take(RelayMessage::parse(&closed).unwrap(), &mut names, now).unwrap_err();
    assert_eq!((refusal.label(), refusal.frame("a")), ("relay", r#"["NEG-ERR","a","restricted: no"]"#.to_owned()));
    listing.close();
    assert_eq!(listing.poll(), None, "the relay has closed it already");

    // A relay that sends without end.
    let (mut listing, mut names, name) = start();
    let said = format!(r#"["EVENT","{name}",{{}}]"#);
    let mut take = || listing.take(RelayMessage::parse(&said).unwrap(), &mut names, now);
    let flood = (0..=quota(1)).find_map(|_| take().err());
    assert_eq!(flood.unwrap().label(), "listing");
}
