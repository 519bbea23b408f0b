//! That `support` does what it says; a test of Tieline never belongs here.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::cli::Cli;
use crate::support::client::{self, Client};
use crate::support::events::{Author, EPOCH, Event, ids};
use crate::support::model::{Auth, Info, ModelRelay, Neg, Quirks, Verdict};
use crate::support::proxy::{Fault, Proxy};
use crate::support::relay::TestRelay;

/// A query about everything, to which every set has an answer: list your ids.
const LIST_ALL: &str = "6100000200";

const SOON: Duration = Duration::from_millis(300);

fn author() -> Author {
    Author::new(1)
}

fn of_verb<'m>(messages: &'m [Value], verb: &str) -> Vec<&'m Value> {
    messages.iter().filter(|message| message[0] == verb).collect()
}

fn event_ids(messages: &[Value]) -> Vec<String> {
    of_verb(messages, "EVENT").iter().map(|message| message[2]["id"].as_str().unwrap().to_owned()).collect()
}

/// Opens a session about everything and returns the first answer, NOTICEs included.
async fn neg_open(client: &mut Client) -> Option<Value> {
    client.send(&json!(["NEG-OPEN", "n", {"since": 1}, LIST_ALL])).await;
    client.receive().await
}

mod events {
    use super::*;

    #[test]
    fn are_the_same_every_time_and_different_from_each_other() {
        assert_eq!(author().note(EPOCH).id, author().note(EPOCH).id);
        assert_eq!(ids(&author().notes(1000, EPOCH)).len(), 1000);
        assert_eq!(ids(&author().notes_of_one_second(100, EPOCH)).len(), 100);
    }

    #[test]
    fn are_valid_unless_forged() {
        let author = author();
        let note = author.note(EPOCH);
        for event in [
            author.replaceable(0, EPOCH, "{}"),
            author.addressable(30_000, "d", EPOCH, ""),
            author.delete(EPOCH, &[&note]),
            author.delete_addresses(EPOCH, &["30000:00:d"]),
            author.vanish(EPOCH, "ALL_RELAYS"),
            author.expiring(EPOCH, EPOCH + 60),
            author.ephemeral(EPOCH),
            author.protected(EPOCH),
            author.gift_wrap(EPOCH, &author.pubkey()),
            author.auth("ws://h", "c"),
        ] {
            assert!(event.is_valid(), "{}", event.json);
        }
        for forged in [note.with_forged_id(), note.with_forged_signature(), note.with_forged_content()] {
            assert!(!forged.is_valid(), "{}", forged.json);
        }
    }

    #[test]
    fn are_read_by_tieline() {
        let note = author().note(EPOCH);
        assert_eq!(tieline::nostr::Event::parse(&note.json).unwrap().id().to_string(), note.id);
        assert!(tieline::nostr::Event::parse(&note.with_forged_id().json).is_err());
        assert!(tieline::nostr::Event::parse(&note.with_forged_signature().json).is_ok());
    }
}

mod relays {
    use super::*;

    #[tokio::test]
    async fn are_filled_and_read_back() {
        for relay in TestRelay::each().await {
            // More than any relay's default page, and a second that spans pages.
            let mut events = author().notes(700, EPOCH);
            events.extend(author().notes_of_one_second(30, EPOCH + 10));
            relay.fill(&events).await;
            assert_eq!(relay.ids(&json!({})).await, ids(&events), "{}", relay.name());
            let some = relay.ids(&json!({"since": EPOCH + 10, "until": EPOCH + 11})).await;
            assert_eq!(some.len(), 32, "{}", relay.name());
            assert!(relay.ids(&json!({"kinds": [7]})).await.is_empty(), "{}", relay.name());
            let url = relay.url().to_owned();
            relay.stop();
            tokio::time::sleep(SOON).await;
            assert!(tokio_tungstenite::connect_async(url).await.is_err());
        }
    }

    #[tokio::test]
    async fn keep_the_newest_and_heed_deletions() {
        for relay in TestRelay::each().await {
            let [old, new] = [0, 1].map(|at| author().replaceable(0, EPOCH + at, "{}"));
            let note = author().note(EPOCH);
            relay.fill(&[old, new.clone(), note.clone()]).await;
            let request = author().delete(EPOCH + 1, &[&note]);
            relay.fill(std::slice::from_ref(&request)).await;
            assert_eq!(relay.ids(&json!({})).await, ids([&new, &request]), "{}", relay.name());
        }
    }

    #[tokio::test]
    async fn speak_negentropy_or_do_not() {
        for relay in TestRelay::each().await {
            relay.fill(&author().notes(3, EPOCH)).await;
            let mut client = Client::connect(relay.url()).await;
            if relay.name() == "nostr-relay" {
                client.send(&json!(["NEG-OPEN", "n", {"since": 1}, LIST_ALL])).await;
                assert!(client.is_silent_for(SOON).await);
            } else {
                let answer = neg_open(&mut client).await.unwrap();
                assert_eq!(answer[0], "NEG-MSG", "{}", relay.name());
                assert_eq!(answer[2].as_str().unwrap().len(), LIST_ALL.len() + 3 * 64, "{answer}");
            }
        }
    }

    #[tokio::test]
    async fn in_process_asks_for_authentication_when_told_to() {
        use nostr_relay_builder::builder::{RelayBuilderNip42, RelayBuilderNip42Mode};
        let nip42 = RelayBuilderNip42 { mode: RelayBuilderNip42Mode::Both };
        let relay = TestRelay::in_process_with(|builder| builder.nip42(nip42)).await;
        let notes = author().notes(3, EPOCH);
        relay.fill(&notes).await;
        assert_eq!(relay.ids(&json!({})).await, ids(&notes));
    }

    #[tokio::test]
    async fn nostr_relay_stores_an_event_with_a_wrong_id() {
        // Why every event that arrives is checked.
        let relay = TestRelay::nostr_relay().await;
        let forged = author().note(EPOCH).with_forged_id();
        let (accepted, _) = Client::connect(relay.url()).await.publish(&forged).await;
        assert!(accepted);
        assert_eq!(relay.ids(&json!({})).await, ids([&forged]));
    }
}

mod model {
    use super::*;

    async fn model(quirks: Quirks, events: &[Event]) -> (ModelRelay, Client) {
        let relay = ModelRelay::start(quirks).await;
        relay.fill(events);
        let client = Client::connect(relay.url()).await;
        (relay, client)
    }

    #[tokio::test]
    async fn caps_orders_and_hints() {
        let notes = author().notes_of_one_second(5, EPOCH);
        let quirks = Quirks { page_cap: Some(2), eose_hints: true, ..Quirks::default() };
        let (relay, mut client) = model(quirks, &notes).await;
        let sorted: Vec<String> = ids(&notes).into_iter().collect();

        let answers = client.request(&json!({"limit": 3})).await;
        assert_eq!(event_ids(&answers), sorted[..2]);
        assert_eq!(answers.last().unwrap(), &json!(["EOSE", "q", ["more"]]));

        relay.change(|quirks| *quirks = Quirks { ties_reversed: true, eose_hints: true, ..Quirks::default() });
        let answers = client.request(&json!({"limit": 5})).await;
        assert_eq!(event_ids(&answers), sorted.iter().rev().cloned().collect::<Vec<_>>());
        assert_eq!(answers.last().unwrap(), &json!(["EOSE", "q", ["finish"]]));

        relay.change(|quirks| *quirks = Quirks { default_limit: Some(1), ..Quirks::default() });
        assert_eq!(event_ids(&client.request(&json!({})).await).len(), 1);
        assert_eq!(event_ids(&client.request(&json!({"limit": 0})).await).len(), 0);

        relay.change(|quirks| *quirks = Quirks { ignores_limit: true, ignores_until: true, ..Quirks::default() });
        assert_eq!(event_ids(&client.request(&json!({"limit": 1, "until": 1})).await).len(), 5);
    }

    #[tokio::test]
    async fn leaves_the_second_of_until_out() {
        let notes = author().notes(3, EPOCH);
        let (_relay, mut client) = model(Quirks { until_exclusive: true, ..Quirks::default() }, &notes).await;
        let page = client.request(&json!({"until": EPOCH + 1})).await;
        assert_eq!(event_ids(&page), [notes[0].id.as_str()]);
    }

    #[tokio::test]
    async fn finds_by_every_part_of_a_filter() {
        let wrap = Author::new(2).gift_wrap(EPOCH + 1, &author().pubkey());
        let events = [author().note(EPOCH), wrap.clone()];
        let (relay, mut client) = model(Quirks::default(), &events).await;
        for filter in [
            json!({"ids": [wrap.id], "since": EPOCH}),
            json!({"authors": [wrap.pubkey]}),
            json!({"kinds": [1059]}),
            json!({"#p": [author().pubkey()]}),
            json!({"since": EPOCH + 1, "until": EPOCH + 1}),
        ] {
            assert_eq!(event_ids(&client.request(&filter).await), [wrap.id.as_str()], "{filter}");
        }
        assert_eq!(client.request(&json!({"&t": ["x"]})).await[0][0], "CLOSED");
        assert_eq!(relay.received("REQ"), 6);
    }

    #[tokio::test]
    async fn interrupts_and_injects() {
        let notes = author().notes(5, EPOCH);
        let quirks = Quirks { closed_after: Some((2, "error: enough".into())), ..Quirks::default() };
        let (relay, mut client) = model(quirks, &notes).await;
        let answers = client.request(&json!({})).await;
        assert_eq!(answers.len(), 3);
        assert_eq!(answers[2], json!(["CLOSED", "q", "error: enough"]));

        let forged = author().note(1).with_forged_id();
        relay.change(|quirks| *quirks = Quirks { injected: vec![forged.clone()], ..Quirks::default() });
        assert_eq!(event_ids(&client.request(&json!({"kinds": [7]})).await), [forged.id]);

        relay.change(|quirks| *quirks = Quirks { never_eose: true, ..Quirks::default() });
        client.send(&json!(["REQ", "r", {"limit": 1}])).await;
        assert_eq!(client.receive().await.unwrap()[0], "EVENT");
        assert!(client.is_silent_for(SOON).await);

        relay.change(|quirks| *quirks = Quirks { closes_after_eose: true, ..Quirks::default() });
        assert_eq!(client.request(&json!({"limit": 0})).await, [json!(["EOSE", "q"])]);
        assert_eq!(client.receive().await.unwrap(), json!(["CLOSED", "q", ""]));

        relay.change(|quirks| *quirks = Quirks { req_notice: Some("no".into()), ..Quirks::default() });
        client.send(&json!(["REQ", "r", {}])).await;
        assert_eq!(client.receive().await.unwrap(), json!(["NOTICE", "no"]));

        relay.change(|quirks| quirks.max_message_length = Some(100));
        client.send(&json!(["REQ", "r".repeat(100), {}])).await;
        assert_eq!(client.receive().await, None);
    }

    #[tokio::test]
    async fn limits_subscriptions_and_chatters() {
        let quirks = Quirks { max_subscriptions: Some(1), chatter: vec!["hi".into()], ..Quirks::default() };
        let (_relay, mut client) = model(quirks, &[]).await;
        for (name, verb) in [("a", "EOSE"), ("b", "CLOSED"), ("a", "EOSE")] {
            client.send(&json!(["REQ", name, {}])).await;
            assert_eq!(client.receive().await.unwrap(), json!(["NOTICE", "hi"]));
            assert_eq!(client.receive().await.unwrap()[0], verb);
        }
    }

    #[tokio::test]
    async fn streams_what_is_new() {
        let (relay, mut client) = model(Quirks::default(), &author().notes(1, EPOCH)).await;
        client.send(&json!(["REQ", "live", {"limit": 0}])).await;
        assert_eq!(client.receive().await.unwrap()[0], "EOSE");
        let [stored, passed_on] = [author().note(EPOCH + 1), author().ephemeral(EPOCH)];
        client::fill(relay.url(), &[stored.clone(), passed_on.clone()]).await;
        for event in [&stored, &passed_on] {
            assert_eq!(event_ids(&[client.receive().await.unwrap()]), [event.id.as_str()]);
        }
        assert!(!relay.ids(&json!({})).contains(&passed_on.id));
    }

    #[tokio::test]
    async fn keeps_what_the_nips_say() {
        let author = author();
        let at = |at| author.addressable(30_000, "d", EPOCH + at, "");
        let [first, second] = [at(1), at(2)];
        let (relay, mut client) = model(Quirks::default(), &[]).await;
        let address = first.address().unwrap();
        let note = author.note(EPOCH);
        let delete = author.delete(EPOCH, &[&note]);
        let strangers = Author::new(2).delete(EPOCH, &[&second]);
        let mut publish = async |event: &Event| client.publish(event).await;
        let yes = |text: &str| (true, text.to_owned());
        let no = |text: &str| (false, text.to_owned());

        assert_eq!(publish(&second).await, yes(""));
        assert_eq!(publish(&second).await, yes("duplicate: have this event"));
        assert_eq!(publish(&first).await, no("replaced: have newer event"));
        assert_eq!(publish(&strangers).await, yes(""));
        assert_eq!(publish(&delete).await, yes(""));
        assert_eq!(publish(&note).await, no("deleted: user requested deletion"));
        assert_eq!(relay.ids(&json!({"authors": [author.pubkey()]})), ids([&second, &delete]));

        assert_eq!(publish(&author.delete_addresses(EPOCH + 2, &[&address])).await, yes(""));
        assert_eq!(publish(&second).await, no("deleted: user requested deletion"));
        assert_eq!(publish(&at(3)).await, yes(""));

        assert_eq!(publish(&author.vanish(EPOCH + 9, "ws://elsewhere")).await, yes(""));
        assert!(relay.ids(&json!({"kinds": [30_000]})).len() == 1);
        let vanish = author.vanish(EPOCH + 10, relay.url());
        assert_eq!(publish(&vanish).await, yes(""));
        assert_eq!(publish(&author.note(EPOCH + 10)).await, no("blocked: user requested to vanish"));
        assert!(relay.ids(&json!({"kinds": [1, 5, 30_000], "authors": [author.pubkey()]})).is_empty());

        assert!(!publish(&author.note(EPOCH + 11).with_forged_signature()).await.0);
        assert_eq!(publish(&author.protected(EPOCH + 11)).await, no("blocked: event marked as protected"));
    }

    #[tokio::test]
    async fn answers_events_as_told() {
        let stranger = Author::new(2).note(EPOCH);
        let pubkey = stranger.pubkey.clone();
        let quirks = Quirks::default().on_event(move |event| match event.kind {
            0 => Verdict::Swallow("mute: no".into()),
            3 => Verdict::Ignore,
            7 => Verdict::KeepSilently,
            8 => Verdict::Say("purgatory: later".into()),
            9 => Verdict::Disconnect,
            10 => Verdict::Raw(r#"["OK","",false]"#.into()),
            _ if event.pubkey == pubkey => Verdict::Refuse("blocked: stranger".into()),
            _ => Verdict::Usual,
        });
        let (relay, mut client) = model(Quirks { rate_limit: Some(7), ..quirks }, &[]).await;
        assert_eq!(client.publish(&stranger).await, (false, "blocked: stranger".into()));
        assert_eq!(client.publish(&author().event(0, EPOCH, &[], "")).await, (true, "mute: no".into()));
        assert_eq!(client.publish(&author().event(8, EPOCH, &[], "")).await, (true, "purgatory: later".into()));
        assert_eq!(client.publish(&author().event(10, EPOCH, &[], "")).await, (false, String::new()));
        for kind in [3, 7] {
            let event = author().event(kind, EPOCH, &[], "");
            client.send_text(&format!(r#"["EVENT",{}]"#, event.json)).await;
        }
        assert!(client.is_silent_for(SOON).await);
        assert_eq!(relay.ids(&json!({"kinds": [0, 3, 7, 8]})).len(), 2);
        let note = author().note(EPOCH);
        assert_eq!(client.publish(&note).await, (true, String::new()));
        assert_eq!(client.publish(&note).await, (false, "rate-limited: slow down".into()));
        let mut other = Client::connect(relay.url()).await;
        other.send_text(&format!(r#"["EVENT",{}]"#, author().event(9, EPOCH, &[], "").json)).await;
        assert_eq!(other.receive().await, None);
    }

    #[tokio::test]
    async fn asks_for_authentication() {
        let relay = ModelRelay::start(Quirks { auth: Auth::required(), ..Quirks::default() }).await;
        let notes = author().notes(3, EPOCH);
        client::fill(relay.url(), &notes).await;
        assert_eq!(client::ids(relay.url(), &json!({})).await, ids(&notes));
        // One challenge for each connection, and each refused command came again once.
        assert_eq!((relay.sent("AUTH"), relay.received("AUTH")), (2, 2));
        assert_eq!(relay.received("EVENT"), 4);

        relay.change(|quirks| quirks.auth.rotates = true);
        let mut client = Client::connect(relay.url()).await;
        let mut challenges = BTreeSet::new();
        for _ in 0..2 {
            let challenge = neg_open(&mut client).await.unwrap();
            assert_eq!(challenge[0], "AUTH");
            challenges.insert(challenge[1].to_string());
            assert_eq!(client.receive().await.unwrap(), json!(["NEG-ERR", "n", "auth-required: say who you are"]));
        }
        assert_eq!(challenges.len(), 2);

        relay.change(|quirks| quirks.auth = Auth { in_vain: true, closes_neg: true, ..Auth::required() });
        let mut client = Client::connect(relay.url()).await;
        let refusal = json!(["CLOSED", "n", "auth-required: say who you are"]);
        let challenge = neg_open(&mut client).await.unwrap();
        assert_eq!(client.receive().await, Some(refusal.clone()));
        let auth = Client::author().auth(relay.url(), challenge[1].as_str().unwrap());
        client.send_text(&format!(r#"["AUTH",{}]"#, auth.json)).await;
        assert_eq!(client.receive().await, Some(json!(["OK", auth.id, true, ""])));
        assert_eq!(neg_open(&mut client).await, Some(refusal));
    }

    #[tokio::test]
    async fn refuses_negentropy_in_every_way() {
        let (relay, mut client) = model(Quirks::default(), &author().notes(3, EPOCH)).await;
        for (neg, answer) in [
            (Neg::Err("blocked: no".into()), json!(["NEG-ERR", "n", "blocked: no"])),
            (Neg::Closed("error: no".into()), json!(["CLOSED", "n", "error: no"])),
            (Neg::Notice("bad msg".into()), json!(["NOTICE", "bad msg"])),
        ] {
            relay.change(|quirks| quirks.neg = neg);
            assert_eq!(neg_open(&mut client).await, Some(answer));
        }
        relay.change(|quirks| *quirks = Quirks { neg_max_sync: Some(2), ..Quirks::default() });
        assert_eq!(neg_open(&mut client).await, Some(json!(["NEG-ERR", "n", "blocked: too many query results"])));
        relay.change(|quirks| quirks.neg_says_max = true);
        assert_eq!(neg_open(&mut client).await, Some(json!(["NEG-ERR", "n", "blocked: too many query results", 2])));
        relay.change(|quirks| quirks.neg = Neg::Silence);
        client.send(&json!(["NEG-OPEN", "n", {}, LIST_ALL])).await;
        assert!(client.is_silent_for(SOON).await);
        relay.change(|quirks| quirks.neg = Neg::Disconnect);
        assert_eq!(neg_open(&mut client).await, None);
    }

    #[tokio::test]
    async fn loses_sessions_and_tampers() {
        let (relay, mut client) = model(Quirks::default(), &author().notes(3, EPOCH)).await;
        relay.change(|quirks| quirks.neg_session_ends_after = Some(1));
        assert_eq!(neg_open(&mut client).await.unwrap()[0], "NEG-MSG");
        client.send(&json!(["NEG-MSG", "n", LIST_ALL])).await;
        assert_eq!(client.receive().await, Some(json!(["NEG-ERR", "n", "closed: took too long"])));
        relay.change(|quirks| quirks.neg_tamper = Some(std::sync::Arc::new(|_| vec![0x61])));
        assert_eq!(neg_open(&mut client).await, Some(json!(["NEG-MSG", "n", "61"])));
        client.send(&json!(["NEG-OPEN", "m", {}, "61000003"])).await;
        assert_eq!(client.receive().await, Some(json!(["NEG-ERR", "m", "PROTOCOL-ERROR"])));
    }

    #[tokio::test]
    async fn lists_what_it_does_not_serve() {
        let notes = author().notes(3, EPOCH);
        let quirks = Quirks { unserved: ids(&notes[..1]), ..Quirks::default() };
        let (_relay, mut client) = model(quirks, &notes).await;
        assert_eq!(event_ids(&client.request(&json!({"ids": [notes[0].id]})).await).len(), 0);
        assert_eq!(event_ids(&client.request(&json!({})).await).len(), 2);
        let answer = neg_open(&mut client).await.unwrap();
        assert!(answer[2].as_str().unwrap().contains(&notes[0].id));
    }

    #[tokio::test]
    async fn passes_events_on_byte_for_byte() {
        let (_relay, mut client) = model(Quirks::default(), &[]).await;
        let spaced = Event::read(&author().note(EPOCH).json.replace(',', " ,")).unwrap();
        client.publish(&spaced).await;
        client.send(&json!(["REQ", "q", {}])).await;
        assert!(client.receive_text().await.unwrap().contains(&spaced.json));
    }

    #[tokio::test]
    async fn records_what_was_said() {
        let notes = author().notes(3, EPOCH);
        let (relay, mut client) = model(Quirks::default(), &notes[..1]).await;
        client.publish(&notes[2]).await;
        client.publish(&notes[1]).await;
        client.request(&json!({"until": EPOCH})).await;
        assert_eq!(relay.offered(), [notes[2].id.as_str(), &notes[1].id]);
        assert_eq!(relay.served(), [notes[0].id.as_str()]);
        assert_eq!(relay.frames().len(), 7);
        relay.clear_record();
        assert_eq!(relay.served().len(), 0);
        relay.forget(&notes[..1]);
        assert_eq!(relay.ids(&json!({})), ids(&notes[1..]));
        relay.disconnect();
        assert_eq!(client.receive().await, None);
    }

    #[tokio::test]
    async fn serves_its_information_over_http() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let relay = ModelRelay::start(Quirks::default()).await;
        let proxy = Proxy::start(relay.url()).await;
        let get = async || {
            let host = proxy.url().trim_start_matches("ws://");
            let mut stream = tokio::net::TcpStream::connect(host).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            text
        };
        let text = get().await;
        assert!(text.starts_with("HTTP/1.1 200 OK\r\ncontent-type: application/nostr+json\r\n"), "{text}");
        assert!(text.ends_with(r#""supported_nips":[1,9,11,42,77]}"#), "{text}");
        relay.change(|quirks| quirks.info = Info::Other("404 Not Found", "text/html", "<p>".into()));
        assert!(get().await.contains("text/html"));
        relay.change(|quirks| quirks.info = Info::None);
        assert_eq!(get().await, "");
    }

    #[tokio::test]
    async fn takes_its_time() {
        let (_relay, mut client) = model(Quirks { delay: SOON, ..Quirks::default() }, &[]).await;
        let start = Instant::now();
        client.request(&json!({})).await;
        assert!(start.elapsed() >= SOON);
    }
}

mod proxy {
    use super::*;

    /// Three notes behind a proxy: the answer to a REQ is four messages.
    async fn proxied() -> (TestRelay, Proxy) {
        let relay = TestRelay::model().await;
        relay.fill(&author().notes(3, EPOCH)).await;
        let proxy = Proxy::start(relay.url()).await;
        (relay, proxy)
    }

    #[tokio::test]
    async fn forwards_and_counts() {
        let (_relay, proxy) = proxied().await;
        let mut client = Client::connect(proxy.url()).await;
        client.send(&json!(["REQ", "q", {}])).await;
        for _ in 0..4 {
            client.receive().await.unwrap();
        }
        assert_eq!(proxy.messages(), 5);
    }

    #[tokio::test]
    async fn cuts_after_any_message() {
        let (relay, proxy) = proxied().await;
        for after in 0..5 {
            let proxy = Proxy::start(relay.url()).await;
            proxy.set_fault(Fault::CutOnce(after));
            let mut client = Client::connect(proxy.url()).await;
            client.send(&json!(["REQ", "q", {}])).await;
            let mut received = 0;
            while client.receive().await.is_some() {
                received += 1;
            }
            assert_eq!(received, after.saturating_sub(1));
            assert_eq!(client::ids(proxy.url(), &json!({})).await.len(), 3, "the next connection is good");
        }
        proxy.set_fault(Fault::CutForGood(0));
        assert!(tokio_tungstenite::connect_async(proxy.url()).await.is_err());
        proxy.set_fault(Fault::None);
        Client::connect(proxy.url()).await;
    }

    #[tokio::test]
    async fn stalls() {
        let (_relay, proxy) = proxied().await;
        proxy.set_fault(Fault::Stall(2));
        let mut client = Client::connect(proxy.url()).await;
        client.send(&json!(["REQ", "q", {}])).await;
        assert_eq!(client.receive().await.unwrap()[0], "EVENT");
        assert!(client.is_silent_for(SOON).await);
        assert_eq!(proxy.messages(), 2);
    }

    #[tokio::test]
    async fn delays_and_throttles() {
        let (_relay, proxy) = proxied().await;
        proxy.set_delay(SOON);
        let mut client = Client::connect(proxy.url()).await;
        let start = Instant::now();
        client.request(&json!({})).await;
        // Latency, not a queue: four answers wait no longer than one.
        assert!((SOON * 2..SOON * 5).contains(&start.elapsed()), "{:?}", start.elapsed());

        proxy.set_delay(Duration::ZERO);
        proxy.set_throttle(Some(1000));
        let start = Instant::now();
        client.request(&json!({})).await;
        assert!(start.elapsed() >= SOON * 2, "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn the_program_runs_and_is_stopped() {
    let cli = Cli::with_config("local: {}\n");
    let output = cli.run(&["--version"]).await;
    assert!((0..=2).contains(&output.code), "{output:?}");
    // A state directory that was made, and nothing outside of it.
    let entries = std::fs::read_dir(cli.directory()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(entries.into_iter().all(|name| name == "peers.yaml" || name == "state"));
}
