//! What a session compares, and what it answers.

use std::collections::BTreeSet;

use serde_json::json;

use super::{QUERY, TestGateway, inventory, listed, open, reconcile, word};
use crate::support::client::Client;
use crate::support::events::{Author, EPOCH, Event, ids};
use crate::support::model::{Auth, Info, ModelRelay, Quirks};
use crate::support::relay::TestRelay;

/// Events of several authors, kinds, tags and times, many of them in one second.
fn assorted() -> Vec<Event> {
    let mut events = Vec::new();
    for n in 0..4_u8 {
        let author = Author::new(n + 1);
        events.extend(author.notes(120, EPOCH + u64::from(n) * 50));
        events.extend(author.notes_of_one_second(40, EPOCH + 60));
        events.extend(
            (0..30).map(|at| author.event(7, EPOCH + at % 3, &[&["t", &(at % 5).to_string()]], &at.to_string())),
        );
    }
    events
}

fn in_order(mut events: Vec<&Event>) -> Vec<String> {
    events.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    events.into_iter().map(|event| event.id.clone()).collect()
}

/// At every real relay, and at ones that cap their pages, exclude `until` or turn ties around.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inventory_is_what_req_returns() {
    let mut relays = TestRelay::each().await;
    for quirks in [
        Quirks { page_cap: Some(50), ..Quirks::default() },
        Quirks { page_cap: Some(100), ties_reversed: true, eose_hints: true, ..Quirks::default() },
        Quirks { page_cap: Some(200), until_exclusive: true, closes_after_eose: true, ..Quirks::default() },
        Quirks { info: Info::None, default_limit: Some(10), ..Quirks::default() },
    ] {
        relays.push(TestRelay::Model(ModelRelay::start(quirks).await));
    }
    let events = assorted();
    let authors: Vec<_> = (1..5).map(|n| Author::new(n).pubkey()).collect();
    for relay in relays {
        relay.fill(&events).await;
        let gateway = TestGateway::start(relay.url()).await;
        for filter in [
            json!({"kinds": [1], "authors": authors}),
            json!({"kinds": [1, 7], "authors": authors}),
            json!({"kinds": [7], "authors": authors}),
            json!({"authors": [authors[0]]}),
            json!({"kinds": [1], "authors": authors, "since": EPOCH + 60, "until": EPOCH + 60}),
            json!({"kinds": [1], "authors": authors, "since": EPOCH + 20, "until": EPOCH + 130}),
            json!({"kinds": [7], "authors": authors, "#t": ["1", "3"]}),
            json!({"kinds": [30_000]}),
        ] {
            let expected = relay.ids(&filter).await;
            let held = inventory(&gateway.url, &filter).await;
            let matching: Vec<_> = events.iter().filter(|event| expected.contains(&event.id)).collect();
            assert_eq!(held, in_order(matching), "{}: {filter}", relay.name());
        }
        let named = vec![&events[0], &events[130], &events[500]];
        let filter = json!({"ids": named.iter().map(|event| &event.id).collect::<Vec<_>>()});
        assert_eq!(inventory(&gateway.url, &filter).await, in_order(named), "{}", relay.name());
        gateway.is_empty().await;
        if let TestRelay::Model(relay) = relay {
            assert_eq!(relay.received("CLOSE"), relay.received("REQ"), "it is left with no subscription");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_without_any_condition_lists_everything() {
    for relay in TestRelay::each().await {
        let events = Author::new(1).notes(20, EPOCH);
        relay.fill(&events).await;
        let gateway = TestGateway::start(relay.url()).await;
        assert_eq!(inventory(&gateway.url, &json!({})).await, in_order(events.iter().collect()), "{}", relay.name());
    }
}

/// What a `limit` leaves is for the relay to say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_means_what_it_means_in_req() {
    for quirks in [Quirks::default(), Quirks { page_cap: Some(7), ties_reversed: true, ..Quirks::default() }] {
        let relay = ModelRelay::start(quirks).await;
        relay.fill(&assorted());
        let gateway = TestGateway::start(relay.url()).await;
        for limit in [0, 5, 1000] {
            let filter = json!({"kinds": [1], "limit": limit});
            let mut client = Client::connect(relay.url()).await;
            let answers = client.request(&filter).await;
            let returned: BTreeSet<String> =
                answers.iter().filter_map(|answer| answer[2]["id"].as_str().map(str::to_owned)).collect();
            let held: BTreeSet<_> = inventory(&gateway.url, &filter).await.into_iter().collect();
            assert_eq!(held, returned, "{limit}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn differences_are_found_over_the_wire() {
    let relay = TestRelay::nostr_relay().await;
    let all = Author::new(1).notes(3000, EPOCH);
    relay.fill(&all[..2500]).await;
    let gateway = TestGateway::with(relay.url(), "limits: {frame_bytes: 4096}").await;
    let mut client = Client::connect(&gateway.url).await;
    for round in ["a", "a", "b"] {
        let (have, need) = reconcile(&mut client, round, &json!({"kinds": [1]}), &all[300..]).await.unwrap();
        assert_eq!(have, ids(&all[2500..]));
        assert_eq!(need, ids(&all[..300]));
    }
}

/// The shape of the case by which frame limits were shown to lose items, over the wire and in
/// both directions; `responder_tests.rs` has it with its own ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_frames_lose_nothing_over_the_wire() {
    let author = Author::new(1);
    let mut n = 0;
    let mut note = |at: u64| {
        n += 1;
        author.note_saying(EPOCH + at, &n.to_string())
    };
    let mut common: Vec<_> = (0..1500).map(|i| note(1000 + i * 10)).collect();
    let mut theirs: Vec<_> = (0..15).map(|i| note(1000 + i * 1000 + 5)).collect();
    let mut ours: Vec<_> =
        (0..2).flat_map(|b| (0..35).map(move |j| 1000 + b * 1000 + 201 + j % 8)).map(&mut note).collect();
    common.extend((0..40).map(|j| note(15_900 + j * 2)));
    theirs.push(note(15_999));
    ours.extend((0..110).map(|i| note(50_000 + i * 10)));
    for (client, behind) in [(&ours, &theirs), (&theirs, &ours)] {
        let relay = ModelRelay::start(Quirks::default()).await;
        relay.fill(&[common.as_slice(), behind].concat());
        let gateway = TestGateway::with(relay.url(), "limits: {frame_bytes: 4767}").await;
        let own = [common.as_slice(), client].concat();
        let mut socket = Client::connect(&gateway.url).await;
        let (have, need) = reconcile(&mut socket, "a", &json!({"kinds": [1]}), &own).await.unwrap();
        assert_eq!((have, need), (ids(client), ids(behind)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_messages_end_their_session_and_nothing_else() {
    let relay = ModelRelay::start(Quirks::default()).await;
    let events = Author::new(1).notes(10, EPOCH);
    relay.fill(&events);
    let gateway = TestGateway::start(relay.url()).await;
    let mut client = Client::connect(&gateway.url).await;
    let filter = json!({"kinds": [1]});
    open(&mut client, "good", &filter).await;
    assert_eq!(listed(&word(&mut client, "good").await).len(), 10);
    for query in ["", "6", "zz", "5f", "610003", "61000002ffffffffffffffffff7f", "6105210101"] {
        open(&mut client, "bad", &filter).await;
        word(&mut client, "bad").await;
        client.send(&json!(["NEG-MSG", "bad", query])).await;
        let said = word(&mut client, "bad").await;
        assert_eq!(said[0], "NEG-ERR", "{query}: {said}");
        assert!(said[2].as_str().unwrap().starts_with("invalid: "), "{query}: {said}");
        client.send(&json!(["NEG-OPEN", "bad", filter, query])).await;
        assert_eq!(word(&mut client, "bad").await[0], "NEG-ERR", "{query}");
    }
    for (filter, expected) in [
        (json!({"kinds": []}), "\"kinds\" is empty"),
        (json!({"search": "x"}), "unknown key"),
        (json!([{"kinds": [1]}]), "expected an object"),
        (json!({"since": 5, "until": 4}), "`since` is after `until`"),
    ] {
        open(&mut client, "bad", &filter).await;
        let said = word(&mut client, "bad").await;
        assert!(said[2].as_str().unwrap().contains(expected), "{said}");
    }
    let deep = format!("[\"NEG-OPEN\",\"bad\",{}1{},\"61\"]", "[".repeat(100_000), "]".repeat(100_000));
    client.send_text(&deep).await;
    assert_eq!(word(&mut client, "bad").await[0], "NEG-ERR");
    for frame in [format!("[\"NEG-OPEN\",\"{}\",{{}},\"61\"]", "x".repeat(100_000)), "[\"NEG-OPEN\"".to_owned()] {
        client.send_text(&frame).await;
        let said = client.receive().await.unwrap();
        assert_eq!(said[0], "NOTICE", "{said}");
        assert!(said.to_string().len() < 200, "{said}");
    }
    client.send(&json!(["NEG-MSG", "good", QUERY])).await;
    assert_eq!(listed(&word(&mut client, "good").await).len(), 10, "the other session lives on");
    assert_eq!(client.request(&filter).await.len(), 11, "and the connection");
    assert_eq!(gateway.refused("malformed"), 7 * 2 + 2);
    assert_eq!(gateway.refused("filter"), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_version_is_agreed_on() {
    let relay = ModelRelay::start(Quirks::default()).await;
    let gateway = TestGateway::start(relay.url()).await;
    let mut client = Client::connect(&gateway.url).await;
    client.send(&json!(["NEG-OPEN", "v", {"kinds": [1]}, "62aabb"])).await;
    assert_eq!(word(&mut client, "v").await, json!(["NEG-MSG", "v", "61"]));
    client.send(&json!(["NEG-MSG", "v", QUERY])).await;
    assert_eq!(listed(&word(&mut client, "v").await), Vec::<String>::new());
}

/// The relay's own policy holds: its challenge reaches the client, and the client's answer it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_relay_decides_who_may_read() {
    let relay = ModelRelay::start(Quirks { auth: Auth::required(), ..Quirks::default() }).await;
    let events = Author::new(1).notes(10, EPOCH);
    relay.fill(&events);
    let gateway = TestGateway::start(relay.url()).await;
    let mut client = Client::connect(&gateway.url).await.knowing_it_as(relay.url());
    let filter = json!({"kinds": [1]});
    open(&mut client, "a", &filter).await;
    let said = word(&mut client, "a").await;
    assert_eq!(said[0], "NEG-ERR");
    assert!(said[2].as_str().unwrap().starts_with("auth-required:"), "{said}");
    // Answers the challenge that came with the refusal.
    assert_eq!(client.request(&filter).await.len(), 11);
    open(&mut client, "a", &filter).await;
    assert_eq!(listed(&word(&mut client, "a").await), in_order(events.iter().collect()));
    // Another client is nobody yet.
    let mut other = Client::connect(&gateway.url).await;
    open(&mut other, "a", &filter).await;
    assert_eq!(word(&mut other, "a").await[0], "NEG-ERR");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_relay_refuses_is_refused_in_its_words() {
    for (quirks, text) in [
        (
            Quirks { closed_after: Some((3, "restricted: members only".to_owned())), ..Quirks::default() },
            "restricted: members only",
        ),
        (Quirks { closed_after: Some((0, String::new())), ..Quirks::default() }, "error: the relay closed the listing"),
    ] {
        let relay = ModelRelay::start(quirks).await;
        relay.fill(&Author::new(1).notes(10, EPOCH));
        let gateway = TestGateway::start(relay.url()).await;
        let mut client = Client::connect(&gateway.url).await;
        open(&mut client, "a", &json!({"kinds": [1]})).await;
        assert_eq!(word(&mut client, "a").await, json!(["NEG-ERR", "a", text]));
        gateway.holds(|view| view.sessions == 0 && view.listings == 0 && view.inventory_bytes == 0).await;
    }
    // No room for one more subscription: the client may come again when it has closed one.
    let relay = ModelRelay::start(Quirks { max_subscriptions: Some(1), ..Quirks::default() }).await;
    let gateway = TestGateway::start(relay.url()).await;
    let mut client = Client::connect(&gateway.url).await;
    client.send(&json!(["REQ", "q", {"kinds": [1]}])).await;
    assert_eq!(client.receive().await.unwrap()[0], "EOSE");
    open(&mut client, "a", &json!({"kinds": [1]})).await;
    assert_eq!(word(&mut client, "a").await[0], "NEG-ERR");
    client.send(&json!(["CLOSE", "q"])).await;
    open(&mut client, "a", &json!({"kinds": [1]})).await;
    assert_eq!(word(&mut client, "a").await[0], "NEG-MSG");
}

/// More events in a second than the relay lists at once: said, and never passed over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_that_would_be_short_is_refused() {
    let relay = ModelRelay::start(Quirks { page_cap: Some(100), ..Quirks::default() }).await;
    relay.fill(&Author::new(1).notes_of_one_second(250, EPOCH));
    relay.fill(&Author::new(2).notes(30, EPOCH - 100));
    let gateway = TestGateway::start(relay.url()).await;
    let mut client = Client::connect(&gateway.url).await;
    open(&mut client, "a", &json!({"kinds": [1]})).await;
    let said = word(&mut client, "a").await;
    let expected = format!("blocked: too many events in second {EPOCH}: the relay lists only 100 of them at once");
    assert_eq!(said, json!(["NEG-ERR", "a", expected]));
    // In parts that the relay can list, it works.
    open(&mut client, "a", &json!({"kinds": [1], "until": EPOCH - 1})).await;
    assert_eq!(listed(&word(&mut client, "a").await).len(), 30);
}

/// Relays that answer otherwise than they should.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_cannot_be_listed_is_said_to_be_one() {
    let relay = ModelRelay::start(Quirks { ignores_until: true, page_cap: Some(50), ..Quirks::default() }).await;
    relay.fill(&Author::new(1).notes(200, EPOCH));
    let gateway = TestGateway::start(relay.url()).await;
    let mut client = Client::connect(&gateway.url).await;
    open(&mut client, "a", &json!({"kinds": [1]})).await;
    let said = word(&mut client, "a").await;
    assert!(said[2].as_str().unwrap().starts_with("error: the relay cannot be listed"), "{said}");

    let relay = ModelRelay::start(Quirks { ignores_limit: true, ..Quirks::default() }).await;
    relay.fill(&Author::new(1).notes(3000, EPOCH));
    let gateway = TestGateway::start(relay.url()).await;
    assert_eq!(inventory(&gateway.url, &json!({"kinds": [1]})).await.len(), 3000);
}
