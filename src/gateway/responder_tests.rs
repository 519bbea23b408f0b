use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use negentropy::{Id, Negentropy, NegentropyStorageVector};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::nostr::EventId;

const FILTER: &str = r#"{"kinds":[1]}"#;
/// An empty id list over everything.
const QUERY: &str = "6100000200";

/// A responder whose listings find `items`, and which works at once.
struct Desk {
    responder: Responder,
    items: Vec<Item>,
    now: Instant,
    /// Whether listings and work wait until they are asked for.
    slow: bool,
    listings: VecDeque<u64>,
    forgotten: Vec<u64>,
    work: VecDeque<Work>,
    /// What is held: one more than the number of clones.
    slots: Arc<()>,
    memory: Arc<()>,
    slots_left: usize,
}

impl Desk {
    fn new(limits: GatewayLimits) -> Self {
        let now = crate::clock::instant();
        Self {
            responder: Responder::new(limits, now),
            items: Vec::new(),
            now,
            slow: false,
            listings: VecDeque::new(),
            forgotten: Vec::new(),
            work: VecDeque::new(),
            slots: Arc::default(),
            memory: Arc::default(),
            slots_left: usize::MAX,
        }
    }

    fn held(&self) -> (usize, usize) {
        (Arc::strong_count(&self.slots) - 1, Arc::strong_count(&self.memory) - 1)
    }

    /// Says something to it, and returns all that comes back.
    fn say(&mut self, frame: &str) -> Vec<Value> {
        let (slots, left) = (&self.slots, self.slots_left);
        let slot = || (Arc::strong_count(slots) - 1 < left).then(|| Box::new(slots.clone()) as Hold);
        self.responder.receive(NegMessage::parse(frame), slot, self.now);
        self.carry_out()
    }

    fn open(&mut self, id: &str) -> Vec<Value> {
        self.say(&format!(r#"["NEG-OPEN","{id}",{FILTER},"{QUERY}"]"#))
    }

    fn message(&mut self, id: &str) -> Vec<Value> {
        self.say(&format!(r#"["NEG-MSG","{id}","{QUERY}"]"#))
    }

    fn pass(&mut self, time: Duration) -> Vec<Value> {
        self.now += time;
        self.responder.tick(self.now);
        self.carry_out()
    }

    fn list(&mut self) -> Vec<Value> {
        if let Some(session) = self.listings.pop_front() {
            // In two pages, newest first, as a pager lists.
            let mut items = self.items.clone();
            items.sort_by(|a, b| b.cmp(a));
            let later = items.split_off(items.len() / 2);
            self.responder.listed(session, Ok((vec![items, later], Box::new(self.memory.clone()))));
        }
        self.carry_out()
    }

    fn work(&mut self) -> Vec<Value> {
        if let Some(work) = self.work.pop_front() {
            self.responder.worked(work.run(), self.now);
        }
        self.carry_out()
    }

    fn carry_out(&mut self) -> Vec<Value> {
        let mut said = Vec::new();
        while let Some(action) = self.responder.poll() {
            match action {
                Action::Send(frame) | Action::Refuse { frame, .. } => said.push(serde_json::from_str(&frame).unwrap()),
                Action::List { session, .. } => self.listings.push_back(session),
                Action::Forget { session } => {
                    self.listings.retain(|listing| *listing != session);
                    self.forgotten.push(session);
                }
                Action::Work(work) => self.work.push_back(work),
            }
        }
        if !self.slow && !self.listings.is_empty() {
            said.extend(self.list());
        }
        if !self.slow && !self.work.is_empty() {
            said.extend(self.work());
        }
        said
    }
}

fn item(at: u64, n: u64) -> Item {
    let mut id = [0; 32];
    fastrand::Rng::with_seed(n).fill(&mut id);
    (at, EventId::new(id))
}

fn err(id: &str, text: &str) -> Vec<Value> {
    vec![json!(["NEG-ERR", id, text])]
}

fn answer(said: &[Value]) -> Vec<u8> {
    let [said] = said else { panic!("{said:?}") };
    assert_eq!(said[0], "NEG-MSG", "{said}");
    hex::decode(said[2].as_str().unwrap()).unwrap()
}

/// Reconciles a client's items with those of a desk: what only the client has, and what it lacks.
fn reconcile(desk: &mut Desk, own: &[Item], client_frame: u64) -> (BTreeSet<[u8; 32]>, BTreeSet<[u8; 32]>) {
    let mut storage = NegentropyStorageVector::new();
    for (at, id) in own {
        storage.insert(*at, Id::from_byte_array(*id.as_bytes())).unwrap();
    }
    storage.seal().unwrap();
    let mut client = Negentropy::owned(storage, client_frame).unwrap();
    let query = hex::encode(client.initiate().unwrap());
    let mut said = desk.say(&format!(r#"["NEG-OPEN","x",{FILTER},"{query}"]"#));
    let (mut have, mut need) = (Vec::new(), Vec::new());
    for _ in 0..10_000 {
        let message = answer(&said);
        assert!(message.len() <= desk.responder.limits.frame_bytes);
        let Some(query) = client.reconcile_with_ids(&message, &mut have, &mut need).unwrap() else {
            assert_eq!(desk.say(r#"["NEG-CLOSE","x"]"#), Vec::<Value>::new());
            let set = |ids: Vec<Id>| ids.into_iter().map(|id| *id.as_bytes()).collect();
            return (set(have), set(need));
        };
        desk.now += Duration::from_millis(20);
        said = desk.say(&format!(r#"["NEG-MSG","x","{}"]"#, hex::encode(query)));
    }
    panic!("it does not end");
}

#[test]
fn a_session_answers_from_what_was_listed() {
    let mut desk = Desk::new(GatewayLimits::default());
    desk.items = vec![item(5, 1), item(5, 2), item(3, 3)];
    let said = desk.open("a");
    let mut expected = vec![0x61, 0, 0, 2, 3];
    let mut items = desk.items.clone();
    items.sort();
    items.iter().for_each(|(_, id)| expected.extend(id.as_bytes()));
    assert_eq!((said[0][1].as_str(), answer(&said)), (Some("a"), expected.clone()));
    assert_eq!(desk.held(), (1, 1));
    // Frozen: what is new does not show.
    desk.items.push(item(9, 4));
    assert_eq!(answer(&desk.message("a")), expected);
    assert_eq!(desk.say(r#"["NEG-CLOSE","a"]"#), Vec::<Value>::new());
    assert_eq!(desk.held(), (0, 0));
    assert_eq!(desk.message("a"), err("a", "closed: no session has this id"));
    assert_eq!(desk.say(r#"["NEG-CLOSE","a"]"#), Vec::<Value>::new());
}

#[test]
fn another_version_is_answered_with_ours() {
    let mut desk = Desk::new(GatewayLimits::default());
    desk.items = vec![item(5, 1)];
    for version in ["60", "62", "6f", "62ffffff"] {
        assert_eq!(answer(&desk.say(&format!(r#"["NEG-OPEN","a",{FILTER},"{version}"]"#))), [0x61]);
    }
    assert_eq!(answer(&desk.message("a")).len(), 5 + 32, "the session goes on in the right version");
    // The last two announce more ids than they bring, as the crate's own case does.
    let one_short = format!("6100000202{}", "bb".repeat(32));
    for version in ["5f", "70", "00", "", "61000002c080808000", &one_short] {
        let said = desk.say(&format!(r#"["NEG-OPEN","a",{FILTER},"{version}"]"#));
        assert!(said[0][2].as_str().unwrap().starts_with("invalid: malformed negentropy message"), "{said:?}");
    }
    assert_eq!(desk.held(), (0, 0));
}

#[test]
fn an_open_id_is_replaced() {
    let mut desk = Desk::new(GatewayLimits { sessions_per_connection: 1, sessions: 1, ..GatewayLimits::default() });
    desk.slots_left = 1;
    desk.open("a");
    desk.items = vec![item(5, 1)];
    assert_eq!(answer(&desk.open("a")).len(), 5 + 32, "the new one is listed anew");
    assert_eq!(desk.held(), (1, 1));
    desk.slow = true;
    desk.open("a");
    assert_eq!(desk.held(), (1, 0));
    desk.open("a");
    assert_eq!((&desk.forgotten, &desk.listings), (&vec![3], &VecDeque::from([4])));
    desk.list();
    // The answer to a session that is replaced meanwhile goes nowhere.
    desk.open("a");
    assert_eq!(desk.work(), Vec::<Value>::new());
    assert_eq!(desk.held(), (1, 0));
    // An outcome that comes too late neither.
    desk.responder.listed(4, Ok((Vec::new(), Box::new(desk.memory.clone()))));
    assert_eq!(desk.carry_out(), Vec::<Value>::new());
    desk.list();
    assert_eq!(answer(&desk.work()).len(), 5 + 32);
}

#[test]
fn one_query_is_answered_at_a_time() {
    let mut desk = Desk::new(GatewayLimits::default());
    desk.slow = true;
    let early = |id| err(id, "invalid: a message before the answer to the one before");
    desk.open("a");
    assert_eq!(desk.message("a"), early("a"));
    assert_eq!(desk.forgotten, [1]);
    desk.open("b");
    desk.list();
    assert_eq!(desk.message("b"), early("b"));
    assert_eq!(desk.work(), Vec::<Value>::new());
    assert_eq!(desk.held(), (0, 0));
}

#[test]
fn limits_end_one_session_and_no_other() {
    let limits = GatewayLimits { sessions_per_connection: 2, ..GatewayLimits::default() };
    let mut desk = Desk::new(limits);
    desk.open("a");
    desk.open("b");
    let full = "rate-limited: too many concurrent sessions on this connection, at most 2";
    assert_eq!(desk.open("c"), err("c", full));
    desk.slots_left = 2;
    desk.say(r#"["NEG-CLOSE","b"]"#);
    desk.slots_left = 1;
    assert_eq!(desk.open("c"), err("c", "rate-limited: too many concurrent sessions"));
    desk.slots_left = 2;
    for filter in ["{}", r#"{"since":5,"until":9}"#] {
        let said = desk.say(&format!(r#"["NEG-OPEN","c",{filter},"{QUERY}"]"#));
        assert_eq!(said, err("c", "blocked: a filter that matches every event is not reconciled here"));
    }
    answer(&desk.say(&format!(r#"["NEG-OPEN","c",{{"limit":10}},"{QUERY}"]"#)));
    answer(&desk.message("a"));

    let mut desk = Desk::new(GatewayLimits { allow_unrestricted: true, ..GatewayLimits::default() });
    answer(&desk.say(&format!(r#"["NEG-OPEN","c",{{}},"{QUERY}"]"#)));
}

#[test]
fn what_takes_too_long_ends() {
    let limits =
        GatewayLimits { idle: Duration::from_secs(20), total: Duration::from_secs(50), ..GatewayLimits::default() };
    let mut desk = Desk::new(limits);
    assert_eq!(desk.responder.deadline(), None);
    desk.open("a");
    desk.open("b");
    assert_eq!(desk.responder.deadline(), Some(desk.now + Duration::from_secs(20)));
    assert_eq!(desk.pass(Duration::from_secs(19)), Vec::<Value>::new());
    answer(&desk.message("a"));
    assert_eq!(desk.pass(Duration::from_secs(1)), err("b", "closed: no message for 20 s"));
    for _ in 0..2 {
        assert_eq!(desk.pass(Duration::from_secs(14)), Vec::<Value>::new());
        answer(&desk.message("a"));
    }
    // 48 s, and 2 more.
    assert_eq!(desk.pass(Duration::from_secs(2)), err("a", "closed: the session took longer than 50 s"));

    // A listing is not the client's silence; it counts for the whole.
    desk.slow = true;
    desk.open("c");
    assert_eq!(desk.pass(Duration::from_secs(49)), Vec::<Value>::new());
    assert_eq!(desk.pass(Duration::from_secs(1)), err("c", "closed: the session took longer than 50 s"));
    assert_eq!((desk.forgotten.as_slice(), desk.held()), ([3].as_slice(), (0, 0)));
}

#[test]
fn messages_come_no_faster_than_allowed() {
    let mut desk = Desk::new(GatewayLimits { messages_per_second: 3, ..GatewayLimits::default() });
    desk.open("a");
    desk.open("b");
    answer(&desk.message("a"));
    let fast = |id| err(id, "rate-limited: more than 3 negentropy messages a second");
    assert_eq!(desk.message("a"), fast("a"));
    assert_eq!(desk.open("c"), fast("c"));
    assert_eq!(desk.held(), (1, 1), "b is left alone");
    desk.pass(Duration::from_millis(400));
    answer(&desk.message("b"));
    assert_eq!(desk.message("b"), fast("b"));
}

#[test]
fn all_end_when_the_relay_is_lost_or_the_gateway_stops() {
    let mut desk = Desk::new(GatewayLimits::default());
    desk.open("a");
    desk.slow = true;
    desk.open("b");
    desk.responder.stop();
    assert_eq!(desk.open("c"), err("c", "closed: the gateway is stopping"));
    desk.message("a");
    answer(&desk.work());
    desk.responder.end_all(&Refusal::Lost);
    let mut said: Vec<_> = desk.carry_out().iter().map(|said| said[1].as_str().unwrap().to_owned()).collect();
    said.sort();
    assert_eq!((said, desk.held()), (vec!["a".to_owned(), "b".to_owned()], (0, 0)));
    assert!(desk.responder.is_idle());
}

#[test]
fn a_listing_that_fails_is_said() {
    let mut desk = Desk::new(GatewayLimits::default());
    desk.slow = true;
    desk.open("a");
    desk.responder.listed(1, Err(Refusal::Events { max: 7 }));
    assert_eq!(desk.carry_out(), [json!(["NEG-ERR", "a", "blocked: too many events match this filter", 7])]);
    assert_eq!((desk.forgotten.len(), desk.held()), (0, (0, 0)));
}

/// The frame-limited cases that the crate and the reference implementation test themselves with:
/// every difference comes through, in any number of frames.
#[test]
fn small_frames_lose_nothing() {
    for (client_frame, frame_bytes) in [(0, 4096), (4096, 4096), (4096, 500_000), (0, 500_000), (60_000, 4096)] {
        let mut desk = Desk::new(GatewayLimits { frame_bytes, ..GatewayLimits::default() });
        let all: Vec<_> = (0..6000).map(|n| item(1000 + n / 3, n)).collect();
        // A run on one side alone, and one in three spread evenly.
        desk.items = all.iter().enumerate().filter(|(n, _)| n % 3 != 0 && *n < 5500).map(|(_, item)| *item).collect();
        let own: Vec<_> =
            all.iter().enumerate().filter(|(n, _)| n % 5 != 0 && *n > 300).map(|(_, item)| *item).collect();
        let set = |of: &[Item], less: &[Item]| -> BTreeSet<[u8; 32]> {
            of.iter().filter(|item| !less.contains(item)).map(|(_, id)| *id.as_bytes()).collect()
        };
        let theirs = desk.items.clone();
        let (have, need) = reconcile(&mut desk, &own, client_frame);
        assert_eq!(have, set(&own, &theirs), "{client_frame} {frame_bytes}");
        assert_eq!(need, set(&theirs, &own), "{client_frame} {frame_bytes}");
        assert_eq!(desk.held(), (0, 0));
    }
}

/// The case by which the crate was shown to lose items when frames fill up
/// (nostrdevkit/negentropy issue 15), item by item, in both directions.
#[test]
fn the_published_case_of_full_frames_is_complete() {
    let mut n = 0_u64;
    let mut item = |at: u64| {
        n += 1;
        let mut id = [0; 32];
        id[..8].copy_from_slice(&n.to_le_bytes());
        (at, EventId::new(id))
    };
    let mut common: Vec<Item> = (0..1500).map(|i| item(1000 + i * 10)).collect();
    let mut theirs: Vec<Item> = (0..15).map(|i| item(1000 + i * 1000 + 5)).collect();
    let mut ours: Vec<Item> =
        (0..2).flat_map(|b| (0..35).map(move |j| 1000 + b * 1000 + 201 + j % 8)).map(&mut item).collect();
    common.extend((0..40).map(|j| item(15_900 + j * 2)));
    theirs.push(item(15_999));
    ours.extend((0..110).map(|i| item(50_000 + i * 10)));
    let set = |items: &[Item]| items.iter().map(|(_, id)| *id.as_bytes()).collect::<BTreeSet<_>>();
    for (client, relay) in [(&ours, &theirs), (&theirs, &ours)] {
        let mut desk = Desk::new(GatewayLimits { frame_bytes: 4767, ..GatewayLimits::default() });
        desk.items = [common.as_slice(), relay].concat();
        let found = reconcile(&mut desk, &[common.as_slice(), client].concat(), 4096);
        assert_eq!(found, (set(client), set(relay)));
    }
}

#[derive(Clone, Debug)]
enum Deed {
    Open(u8, String),
    Message(u8, String),
    Raw(String),
    Close(u8),
    List,
    Work,
    Pass(u64),
}

fn deeds() -> impl Strategy<Value = Deed> {
    let bytes = vec(any::<u8>(), 0..80).prop_map(hex::encode);
    let valid = vec(any::<u8>(), 0..80).prop_map(|bytes| format!("61{}", hex::encode(bytes)));
    let query = || prop_oneof![bytes.clone(), valid.clone(), Just(QUERY.to_owned()), "[0-9a-z]{0,9}"];
    prop_oneof![
        (0..4_u8, query()).prop_map(|(id, query)| Deed::Open(id, query)),
        (0..4_u8, query()).prop_map(|(id, query)| Deed::Message(id, query)),
        "\\PC{0,40}".prop_map(|rest| Deed::Raw(format!("[\"NEG-{rest}"))),
        (0..4_u8).prop_map(Deed::Close),
        Just(Deed::List),
        Just(Deed::Work),
        (0..40_u64).prop_map(Deed::Pass),
    ]
}

proptest! {
    #[test]
    fn the_difference_is_found(sides in vec((0..20_u64, 0..3_u8), 0..200)) {
        let mut desk = Desk::new(GatewayLimits { frame_bytes: 4096, ..GatewayLimits::default() });
        let (mut own, mut have, mut need) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for (n, (at, side)) in (0..).zip(sides) {
            let item = item(at, n);
            match side {
                0 => { own.push(item); desk.items.push(item); }
                1 => { own.push(item); have.insert(*item.1.as_bytes()); }
                _ => { desk.items.push(item); need.insert(*item.1.as_bytes()); }
            }
        }
        prop_assert_eq!(reconcile(&mut desk, &own, 0), (have, need));
    }

    /// Whatever a client does, in whatever order: what is held is what is open, and each thing
    /// said is a bounded NEG-MSG, NEG-ERR or NOTICE.
    #[test]
    fn nothing_breaks_it(deeds in vec(deeds(), 0..60)) {
        let limits = GatewayLimits {
            sessions_per_connection: 3, messages_per_second: 20, idle: Duration::from_secs(30), ..GatewayLimits::default()
        };
        let mut desk = Desk::new(limits);
        desk.slow = true;
        desk.items = (0..50).map(|n| item(n / 4, n)).collect();
        for deed in deeds {
            let said = match deed {
                Deed::Open(id, query) => desk.say(&format!(r#"["NEG-OPEN","{id}",{FILTER},"{query}"]"#)),
                Deed::Message(id, query) => desk.say(&format!(r#"["NEG-MSG","{id}","{query}"]"#)),
                Deed::Raw(frame) => desk.say(&frame),
                Deed::Close(id) => desk.say(&format!(r#"["NEG-CLOSE","{id}"]"#)),
                Deed::List => desk.list(),
                Deed::Work => desk.work(),
                Deed::Pass(seconds) => desk.pass(Duration::from_secs(seconds)),
            };
            for said in said {
                prop_assert!(["NEG-MSG", "NEG-ERR", "NOTICE"].contains(&said[0].as_str().unwrap()), "{}", said);
                prop_assert!(said.to_string().len() < 8192);
            }
            let open = desk.responder.sessions.len();
            prop_assert_eq!(desk.held().0, open);
            prop_assert_eq!(desk.responder.deadline().is_some(), open > 0);
            let listing = desk.responder.sessions.values().filter(|open| matches!(open.stage, Stage::Listing { .. }));
            prop_assert_eq!(desk.listings.len(), listing.count());
        }
        desk.responder.end_all(&Refusal::Lost);
        desk.carry_out();
        desk.work.clear();
        prop_assert_eq!(desk.held(), (0, 0));
    }
}
