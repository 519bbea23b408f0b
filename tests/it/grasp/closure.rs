//! From one bootstrap relay to exactly what the local relay accepts.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::world::{READERS, Repository, accepted, comment, grasp_relay, quote, reply, status};
use super::{SOON, config, converges, eventually, holds, jobs, start, stop};
use crate::support::events::{Author, EPOCH, Event, now};
use crate::support::model::{Info, ModelRelay, Neg, Quirks};
use crate::support::relay::TestRelay;

/// What lies on which of three relays.
#[derive(Default)]
struct Spread([Vec<Event>; 3]);

impl Spread {
    fn add(&mut self, relay: usize, event: Event) -> Event {
        self.0[relay].push(event.clone());
        event
    }

    fn all(&self) -> impl Iterator<Item = &Event> {
        self.0.iter().flatten()
    }
}

/// Repositories with so many roots each, and five events about each root. Some are announced on
/// the first relay alone, some on relays that only those announcements name.
/// The first is of second `start`.
fn spread(service: &str, urls: [&str; 3], repositories: u8, roots: u64, start: u64) -> Spread {
    let mut spread = Spread::default();
    let mut at = start;
    let mut tick = || {
        at += 7;
        at
    };
    let shouted = urls[1].to_uppercase().replace("WS://", "ws://") + "/";
    for n in 0..repositories {
        // Announced where, and kept where: a third each is reached through the one before.
        let (announced, kept) = [(0, 1), (1, 2), (2, 0)][usize::from(n) % 3];
        let named: &[&str] = match (kept, n % 2) {
            (1, 1) => &[&shouted, urls[1]],
            _ => &[urls[kept]],
        };
        let mut repository = Repository::new(n + 1, &format!("repo:{n}"), named);
        if n % 4 == 0 {
            repository.maintainers.push(Author::new(READERS[0]).pubkey());
        }
        // What is older than the announcement is refused until that has come.
        spread.add(announced, repository.state(n + 1, tick()));
        spread.add(kept, repository.state(READERS[0], tick()));
        spread.add(announced, Author::new(n + 1).replaceable(10317, tick(), ""));
        let old = Repository { relays: Vec::new(), ..repository.clone() };
        if n % 5 == 0 {
            spread.add(0, old.announcement(service, tick()));
        }
        let announcement = repository.announcement(service, tick());
        spread.add(announced, announcement);
        for m in 0..roots {
            let reader = READERS[usize::try_from(m).unwrap() % READERS.len()];
            let tag = if m % 10 == 8 {
                "A"
            } else if m % 10 == 9 {
                "q"
            } else {
                "a"
            };
            let early = comment_before(&mut tick);
            let root = spread
                .add(kept, repository.root(reader, [1617, 1618, 1621][usize::try_from(m % 3).unwrap()], tag, tick()));
            // Some of what is said of it lies elsewhere, and one is dated before it.
            let answer = spread.add(kept, comment(READERS[1], &root, early));
            spread.add(kept, reply(READERS[2], &root, &answer, tick()));
            spread.add(kept, status(reader, &root, tick()));
            spread.add(kept, quote(READERS[3], &root, tick()));
            spread.add(0, comment(READERS[4], &root, tick()));
        }
    }
    // What is none of ours: another service's repositories, their issues, and notes.
    for n in 0..u16::from(repositories) * 8 {
        let other = Repository::new(100 + u8::try_from(n % 50).unwrap(), &format!("other-{n}"), &[urls[1]]);
        spread.add(usize::from(n) % 3, other.announcement("wss://other.example", tick()));
        spread.add(usize::from(n) % 3, other.root(READERS[0], 1621, "a", tick()));
        spread.add(usize::from(n) % 3, Author::new(9).note(tick()));
    }
    spread
}

fn comment_before(tick: &mut impl FnMut() -> u64) -> u64 {
    tick()
}

/// The bootstrap relay, one without negentropy, and one that returns 50 events at once and allows
/// fewer subscriptions than there are filters.
async fn relays() -> [ModelRelay; 3] {
    [
        ModelRelay::start(Quirks::default()).await,
        ModelRelay::start(Quirks { neg: Neg::Notice("unknown cmd NEG-OPEN".into()), ..Quirks::default() }).await,
        ModelRelay::start(Quirks {
            page_cap: Some(50),
            max_subscriptions: Some(20),
            info: Info::Document(json!({"limitation": {"max_subscriptions": 20}})),
            ..Quirks::default()
        })
        .await,
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_is_accepted_arrives_and_then_what_is_new() {
    let (local, remote) = (grasp_relay().await, relays().await);
    let world = spread(local.url(), remote.each_ref().map(ModelRelay::url), 40, 10, EPOCH);
    for (relay, events) in remote.iter().zip(&world.0) {
        relay.fill(events);
    }
    let wanted = accepted(local.url(), world.all());
    assert!(wanted.len() > 2400, "{}", wanted.len());
    let (cli, running) = start(&config(&local, &[&remote[0]], ", allow_private: true"));
    let took = holds(&cli, &local, &wanted, Duration::from_secs(180)).await;
    println!("{} events in {took:?}", wanted.len());

    // Its relay is unknown so far, and holds an issue already.
    let fourth = ModelRelay::start(Quirks::default()).await;
    let new = Repository::new(77, "new", &[fourth.url()]);
    let later = EPOCH + 10_000_000;
    let announcement = new.announcement(local.url(), later);
    let root = new.root(READERS[0], 1621, "a", later + 1);
    let answer = comment(READERS[1], &root, later + 2);
    fourth.fill(std::slice::from_ref(&root));
    remote[0].fill(std::slice::from_ref(&announcement));
    let mut wanted = wanted;
    wanted.extend([announcement.id, root.id.clone()]);
    let took = holds(&cli, &local, &wanted, SOON).await;
    println!("a new repository and its issue after {took:?}");
    let heard = |filter: &str| fourth.frames().iter().any(|frame| frame.text.contains(filter));
    eventually(&cli, "the new root is listened to", SOON, || heard(&format!(r##""#E":["{}"]"##, root.id))).await;
    fourth.fill(std::slice::from_ref(&answer));
    wanted.insert(answer.id);
    let took = holds(&cli, &local, &wanted, SOON).await;
    println!("a comment on it after {took:?}");

    // What is shown of it.
    let url = fourth.url();
    converges(&cli, url, 9, SOON).await;
    let mut filters: Vec<_> = jobs(&cli).await.into_iter().filter(|(peer, ..)| peer == url).map(|job| job.1).collect();
    filters.sort();
    assert_eq!(
        filters,
        [
            "grasp/announcements",
            "grasp/people-1",
            "grasp/repositories-1-A",
            "grasp/repositories-1-a",
            "grasp/repositories-1-q",
            "grasp/roots-1-E",
            "grasp/roots-1-e",
            "grasp/roots-1-q",
            "grasp/states-1",
        ]
    );
    let mut peers: Vec<_> = jobs(&cli).await.into_iter().map(|(peer, ..)| peer).collect();
    peers.sort();
    peers.dedup();
    assert_eq!(peers.len(), 4, "each relay once, however it is written: {peers:?}");
    stop(&cli, running).await;
}

/// Relays are stopped and started at random while they are discovered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_makes_no_difference_in_the_end() {
    let (local, remote) = (grasp_relay().await, relays().await);
    // Of today: what a relay without negentropy gets while it is away is looked for by its date, and
    // what is dated further back only once a day.
    let world = spread(local.url(), remote.each_ref().map(ModelRelay::url), 18, 6, now() - 12 * 3600);
    let wanted = accepted(local.url(), world.all());
    for relay in &remote {
        relay.change(|quirks| quirks.delay = Duration::from_millis(20));
    }
    let (cli, running) = start(&config(&local, &[&remote[0]], ", allow_private: true"));
    // A twentieth of it appears in each round, in no order, while one relay or other is away.
    let mut left: Vec<(usize, &Event)> =
        world.0.iter().enumerate().flat_map(|(at, events)| events.iter().map(move |event| (at, event))).collect();
    fastrand::shuffle(&mut left);
    for round in left.chunks(left.len().div_ceil(20)) {
        let relay = [&local, &remote[0], &remote[1], &remote[2]][fastrand::usize(..4)];
        relay.stop();
        for (at, event) in round {
            remote[*at].fill(std::slice::from_ref(event));
        }
        sleep(Duration::from_millis(fastrand::u64(50..800))).await;
        relay.start_again().await;
        sleep(Duration::from_millis(fastrand::u64(100..600))).await;
    }
    // Waits have grown meanwhile: a minute for a stream, and as long for what it finds out.
    let took = holds(&cli, &local, &wanted, Duration::from_secs(240)).await;
    println!("{} events {took:?} after the last restart", wanted.len());
    assert_eq!(local.ids(&json!({"kinds": [1621]})).len(), 18 * 2, "the world is as it was meant");
    stop(&cli, running).await;
}

/// Relays that people run, as far as they are at hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_relays_are_followed() {
    for remote in TestRelay::each().await {
        let local = grasp_relay().await;
        let repository = Repository::new(1, "a:b", &[remote.url()]);
        let mut events = vec![repository.announcement(local.url(), EPOCH), repository.state(1, EPOCH + 1)];
        for n in 0..12 {
            let root =
                repository.root(READERS[0], 1621, ["a", "A", "q"][usize::try_from(n % 3).unwrap()], EPOCH + 10 * n);
            let answer = comment(READERS[1], &root, EPOCH + 500 + n);
            events.push(reply(READERS[2], &root, &answer, EPOCH + 600 + n));
            events.push(quote(READERS[3], &root, EPOCH + 700 + n));
            events.push(status(READERS[0], &root, EPOCH + 800 + n));
            events.extend([root, answer]);
        }
        remote.fill(&events).await;
        let url = format!("'{}'", remote.url());
        let yaml =
            config(&local, &[], ", allow_private: true").replace("bootstrap: []", &format!("bootstrap: [{url}]"));
        let (cli, running) = start(&yaml);
        // That one relay does not know negentropy shows in its silence, which is waited for three times.
        let took = holds(&cli, &local, &accepted(local.url(), &events), SOON * 3).await;
        println!("{}: {} events in {took:?}", remote.name(), events.len());
        stop(&cli, running).await;
    }
}
