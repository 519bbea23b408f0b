//! Faults that are known of others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::world::{READERS, Repository, accepted, comment, grasp_relay, status};
use super::{SOON, config, converges, eventually, holds, jobs, start, stop};
use crate::support::events::{Author, EPOCH, Event};
use crate::support::model::{Auth, ModelRelay, Neg, Quirks, Verdict};

const PRIVATE: &str = ", allow_private: true";

fn no_negentropy() -> Quirks {
    Quirks { neg: Neg::Notice("unknown cmd NEG-OPEN".into()), ..Quirks::default() }
}

/// A relay with a repository that names it, an issue and so many comments.
async fn with_repository(local: &ModelRelay, quirks: Quirks, comments: u64) -> (ModelRelay, Vec<Event>) {
    with_repository_of(1, local, quirks, comments).await
}

async fn with_repository_of(owner: u8, local: &ModelRelay, quirks: Quirks, comments: u64) -> (ModelRelay, Vec<Event>) {
    let relay = ModelRelay::start(quirks).await;
    let repository = Repository::new(owner, "a:b", &[relay.url()]);
    let root = repository.root(READERS[0], 1621, "a", EPOCH + 1);
    let mut events = vec![repository.announcement(local.url(), EPOCH), root.clone()];
    events.extend((0..comments).map(|n| comment(READERS[1], &root, EPOCH + 2 + n)));
    relay.fill(&events);
    (relay, events)
}

/// Ours are the oldest of many pages, and the rest is refused: once, and not again by a process
/// that starts anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_history_of_which_most_is_refused() {
    let local = grasp_relay().await;
    let (remote, ours) = with_repository(&local, Quirks { page_cap: Some(100), ..no_negentropy() }, 3).await;
    let foreign: Vec<_> = (0..1200)
        .map(|n| Repository::new(2, &format!("other-{n}"), &[]).announcement("wss://other.example", EPOCH + 100 + n))
        .collect();
    remote.fill(&foreign);
    let wanted = accepted(local.url(), &ours);
    let (cli, running) = start(&config(&local, &[&remote], PRIVATE));
    holds(&cli, &local, &wanted, SOON).await;
    converges(&cli, remote.url(), 9, SOON).await;
    let mut offers: BTreeMap<String, usize> = BTreeMap::new();
    for id in local.offered() {
        *offers.entry(id).or_default() += 1;
    }
    assert!(foreign.iter().all(|event| offers.contains_key(&event.id)), "each was offered");
    let twice = foreign.iter().filter(|event| offers[&event.id] > 1).count();
    assert!(twice <= 1, "{twice} were offered again: only a stream may bring the newest once more");
    stop(&cli, running).await;

    local.clear_record();
    let running = cli.spawn_logged(&["-vv", "run"]);
    // Another relay with the same foreign ones is found: they are known.
    let second = ModelRelay::start(no_negentropy()).await;
    second.fill(&foreign);
    let new = Repository::new(3, "later", &[second.url()]).announcement(local.url(), EPOCH + 5000);
    eventually(&cli, "it runs again", SOON, || remote.received("REQ") > 0).await;
    remote.fill(std::slice::from_ref(&new));
    let wanted = &wanted | &BTreeSet::from([new.id]);
    holds(&cli, &local, &wanted, SOON).await;
    converges(&cli, second.url(), 6, SOON).await;
    converges(&cli, remote.url(), 9, SOON).await;
    let again: Vec<_> = local.offered().into_iter().filter(|id| !wanted.contains(id)).collect();
    assert!(again.len() <= 2, "{again:?} were asked for again: only streams may bring the newest once more");
    stop(&cli, running).await;
}

/// A page holds 50 events, and one second 160: 40 comments on each of four issues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_that_is_denser_than_a_page() {
    let local = grasp_relay().await;
    let (remote, mut events) = with_repository(&local, Quirks { page_cap: Some(50), ..no_negentropy() }, 0).await;
    let repository = Repository::new(1, "a:b", &[remote.url()]);
    let roots: Vec<_> = (0..4).map(|n| repository.root(READERS[0], 1621, "a", EPOCH + 10 + n)).collect();
    let dense = EPOCH + 500;
    for root in &roots {
        events.extend((0..40).map(|n| {
            let tags: [&[&str]; 2] = [&["E", &root.id], &["e", &root.id]];
            Author::new(READERS[1]).event(1111, dense, &tags, &n.to_string())
        }));
        events.push(comment(READERS[2], root, EPOCH + 400));
    }
    events.extend(roots);
    remote.fill(&events);
    let wanted = accepted(local.url(), &events);
    let (cli, running) = start(&config(&local, &[&remote], PRIVATE));
    holds(&cli, &local, &wanted, SOON).await;
    stop(&cli, running).await;
}

/// It asks to slow down in the middle of the history, and is asked again after the cooldown: its
/// own, of a second, as the config gives it a name and patience.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_limit_in_the_middle_of_history() {
    let local = grasp_relay().await;
    let (remote, events) = with_repository(&local, Quirks { page_cap: Some(50), ..no_negentropy() }, 120).await;
    let (other, more) = with_repository_of(2, &local, Quirks::default(), 0).await;
    remote.change(|quirks| quirks.closed_after = Some((5, "rate-limited: slow down".into())));
    let yaml = config(&local, &[&remote, &other], PRIVATE)
        + &format!(
            "peers: [{{name: slow, url: '{}', direction: pull, retry: {{base: 1s, cap: 2s, cooldown: 2s}}, \
             filters: [{{kinds: [1]}}]}}]\n",
            remote.url()
        );
    let (cli, running) = start(&yaml);
    let wanted = accepted(local.url(), &more);
    eventually(&cli, "the other one is not held up", SOON, || wanted.is_subset(&local.ids(&json!({})))).await;
    remote.change(|quirks| quirks.closed_after = None);
    holds(&cli, &local, &accepted(local.url(), events.iter().chain(&more)), SOON).await;
    let peers: BTreeSet<_> = jobs(&cli).await.into_iter().map(|job| job.0).collect();
    assert_eq!(peers, BTreeSet::from(["slow".to_owned(), other.url().to_owned()]), "one relay has one name");
    stop(&cli, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_that_are_down_at_first_contact() {
    let local = grasp_relay().await;
    let (remote, events) = with_repository(&local, Quirks::default(), 5).await;
    local.stop();
    remote.stop();
    let (cli, running) = start(&config(&local, &[&remote], PRIVATE));
    sleep(Duration::from_secs(2)).await;
    remote.start_again().await;
    sleep(Duration::from_secs(2)).await;
    local.start_again().await;
    holds(&cli, &local, &accepted(local.url(), &events), SOON).await;
    stop(&cli, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_takes_its_time() {
    let local = grasp_relay().await;
    let quirks = Quirks { delay: Duration::from_secs(1), ..Quirks::default() };
    let (remote, events) = with_repository(&local, quirks, 5).await;
    let (cli, running) = start(&config(&local, &[&remote], PRIVATE));
    let wanted = accepted(local.url(), &events);
    holds(&cli, &local, &wanted, SOON * 2).await;
    stop(&cli, running).await;
}

/// What a relay took while it could not be reached is there when it is back: also what says that it
/// is old, as the filters are compared and not the times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_was_away_for_ten_seconds() {
    let local = grasp_relay().await;
    let (remote, mut events) = with_repository(&local, Quirks::default(), 3).await;
    let (cli, running) = start(&config(&local, &[&remote], PRIVATE));
    holds(&cli, &local, &accepted(local.url(), &events), SOON).await;
    converges(&cli, remote.url(), 9, SOON).await;
    remote.stop();
    sleep(Duration::from_secs(10)).await;
    let repository = Repository::new(1, "a:b", &[remote.url()]);
    let (old, new) = (EPOCH + 70, crate::support::events::now());
    let roots = [old, new].map(|at| repository.root(READERS[1], 1621, "a", at));
    let comments = [old + 1, new + 1].map(|at| comment(READERS[0], &roots[0], at));
    remote.fill(&roots);
    remote.fill(&comments);
    remote.start_again().await;
    events.extend(roots.into_iter().chain(comments));
    holds(&cli, &local, &accepted(local.url(), &events), SOON * 3).await;
    stop(&cli, running).await;
}

/// What the local relay took while nobody listened to it is followed when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_relay_is_away_for_a_while() {
    let local = grasp_relay().await;
    let (first, mut events) = with_repository(&local, Quirks::default(), 2).await;
    let (cli, running) = start(&config(&local, &[&first], PRIVATE));
    holds(&cli, &local, &accepted(local.url(), &events), SOON).await;
    converges(&cli, first.url(), 9, SOON).await;
    local.stop();
    let second = ModelRelay::start(Quirks::default()).await;
    let new = Repository::new(5, "new", &[second.url()]);
    // Back-dated: `created_at` is not the time of arrival.
    let now = crate::support::events::now();
    let announcement = new.announcement(local.url(), now - 3600);
    let root = new.root(READERS[0], 1621, "a", EPOCH + 50);
    second.fill(std::slice::from_ref(&root));
    // It reaches the local relay by another way.
    sleep(Duration::from_secs(2)).await;
    // Its policy does not see what is filled in: it is told first, or it might refuse the root.
    local.quirks_on_event()(&announcement);
    local.fill(std::slice::from_ref(&announcement));
    local.start_again().await;
    eventually(&cli, "its relay is asked", SOON, || second.received("REQ") > 0).await;
    events.extend([announcement, root]);
    holds(&cli, &local, &accepted(local.url(), &events), SOON * 2).await;
    stop(&cli, running).await;
}

/// What the local relay hides is not fetched over and over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_hidden_is_not_fetched_again() {
    let local = grasp_relay().await;
    let (remote, events) = with_repository(&local, Quirks::default(), 0).await;
    let repository = Repository::new(1, "a:b", &[remote.url()]);
    let hidden = repository.root(READERS[0], 1618, "a", EPOCH + 30);
    remote.fill(std::slice::from_ref(&hidden));
    let policy = local.quirks_on_event();
    let id = hidden.id.clone();
    local.change(|quirks| {
        quirks.on_event = Some(std::sync::Arc::new(move |event| {
            if event.id == id { Verdict::Swallow("purgatory: waits for its git data".into()) } else { policy(event) }
        }));
    });
    let (cli, running) = start(&config(&local, &[&remote], PRIVATE));
    holds(&cli, &local, &accepted(local.url(), &events), SOON).await;
    converges(&cli, remote.url(), 9, SOON).await;
    assert!(local.offered().contains(&hidden.id));
    let asked = || {
        let frames = remote.frames();
        frames.iter().filter(|frame| frame.verb == "REQ" && frame.text.contains(&hidden.id)).count()
    };
    let before = asked();
    assert!(before > 0);
    // Streams that end make all jobs run again.
    remote.disconnect();
    sleep(Duration::from_secs(4)).await;
    converges(&cli, remote.url(), 9, SOON).await;
    assert_eq!(asked(), before);
    stop(&cli, running).await;
}

/// Private addresses and our own are left alone, whatever they are called.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_cannot_send_us_anywhere() {
    let local = grasp_relay().await;
    let trap = ModelRelay::start(Quirks::default()).await;
    let by_name = trap.url().replace("127.0.0.1", "localhost");
    let mapped = trap.url().replace("127.0.0.1", "[::ffff:127.0.0.1]");
    let repository = Repository::new(1, "r", &[trap.url(), &by_name, &mapped]);
    let bootstrap = ModelRelay::start(Quirks::default()).await;
    let events = [repository.announcement(local.url(), EPOCH), repository.root(READERS[0], 1621, "a", EPOCH + 1)];
    bootstrap.fill(&events);
    let (cli, running) = start(&config(&local, &[&bootstrap], ""));
    holds(&cli, &local, &accepted(local.url(), &events), SOON).await;
    eventually(&cli, "it is said", SOON, || cli.log().contains("it is at a private address")).await;
    converges(&cli, bootstrap.url(), 9, SOON).await;
    assert!(trap.frames().is_empty());
    stop(&cli, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_own_relay_by_another_name_is_not_followed() {
    let local = grasp_relay().await;
    let bootstrap = ModelRelay::start(Quirks::default()).await;
    let own = local.url().replace("127.0.0.1", "localhost");
    let shouted = format!("{}/", local.url().replace("ws://", "WS://"));
    let repository = Repository::new(1, "r", &[&own, &shouted]);
    let events = [repository.announcement(local.url(), EPOCH), repository.root(READERS[0], 1621, "a", EPOCH + 1)];
    bootstrap.fill(&events);
    let (cli, running) = start(&config(&local, &[&bootstrap], PRIVATE));
    holds(&cli, &local, &accepted(local.url(), &events), SOON).await;
    eventually(&cli, "it is found out", SOON, || cli.log().contains("leads to our own relay")).await;
    converges(&cli, bootstrap.url(), 9, SOON).await;
    sleep(Duration::from_secs(1)).await;
    let peers: BTreeSet<_> = jobs(&cli).await.into_iter().map(|job| job.0).collect();
    assert!(peers.iter().all(|peer| *peer == bootstrap.url() || *peer == own), "{peers:?}");
    stop(&cli, running).await;
}

/// 200 relays in one announcement: some are followed, and it is said that not all are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_relays_are_bounded_and_it_is_said() {
    let local = grasp_relay().await;
    let bootstrap = ModelRelay::start(Quirks::default()).await;
    let urls: Vec<String> = (1..=200).map(|n| format!("ws://127.0.0.1:{n}")).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let events = [Repository::new(1, "r", &urls).announcement(local.url(), EPOCH)];
    bootstrap.fill(&events);
    let http = crate::support::relay::free_port();
    let yaml = config(&local, &[&bootstrap], ", allow_private: true, max_relays: 5")
        + &format!("http: {{listen: '127.0.0.1:{http}'}}\n");
    let (cli, running) = start(&yaml);
    holds(&cli, &local, &accepted(local.url(), &events), SOON).await;
    eventually(&cli, "it is said", SOON, || cli.log().contains("there are too many to follow")).await;
    sleep(Duration::from_secs(2)).await;
    let metrics = get(http, "/metrics").await;
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("{name}: {metrics}")).to_owned()
    };
    // The local one, the bootstrap relay and the five.
    assert_eq!(value("tieline_relays_tracked"), "7");
    assert_eq!(value(r#"tieline_grasp_left_out{what="relays"}"#), "195");
    assert_eq!(value("tieline_grasp_repositories"), "1");
    assert_eq!(metrics.lines().filter(|line| line.starts_with("tieline_relay_status{")).count(), 7);
    assert_eq!(value(&format!(r#"tieline_relay_connected{{relay="{}"}}"#, bootstrap.url())), "1");
    assert_eq!(value(&format!(r#"tieline_events_synced_total{{peer="{}"}}"#, bootstrap.url())), "1");
    assert!(metrics.contains(r#"result="failed"} "#));
    stop(&cli, running).await;
}

/// A relay that wants to know who asks learns nothing, unless a key is given for such relays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_told_who_we_are() {
    let local = grasp_relay().await;
    let (remote, events) = with_repository(&local, Quirks { auth: Auth::required(), ..Quirks::default() }, 2).await;
    let (cli, running) = start(&config(&local, &[&remote], PRIVATE));
    eventually(&cli, "it asks", SOON, || remote.sent("AUTH") > 0).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(remote.received("AUTH"), 0);
    stop(&cli, running).await;

    let keys = tempfile::tempdir().unwrap();
    let key = keys.path().join("key");
    std::fs::write(&key, Author::new(50).secret()).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let more = format!("{PRIVATE}, auth: {{secret_key_file: '{}'}}", key.display());
    let (cli, running) = start(&config(&local, &[&remote], &more));
    holds(&cli, &local, &accepted(local.url(), &events), SOON).await;
    stop(&cli, running).await;
}

/// A repository that names another relay lets go of the first, and one that is deleted of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_named_no_longer_is_let_go_of() {
    let local = grasp_relay().await;
    let (bootstrap, remote) = (ModelRelay::start(Quirks::default()).await, ModelRelay::start(Quirks::default()).await);
    let (here, nowhere) = (Repository::new(1, "r", &[remote.url()]), Repository::new(1, "r", &[]));
    bootstrap.fill(&[here.announcement(local.url(), EPOCH)]);
    let http = crate::support::relay::free_port();
    let yaml = config(&local, &[&bootstrap], PRIVATE) + &format!("http: {{listen: '127.0.0.1:{http}'}}\n");
    let (cli, running) = start(&yaml);
    converges(&cli, remote.url(), 6, SOON).await;
    assert!(get(http, "/metrics").await.contains(remote.url()));
    assert!(get(http, "/status").await.contains(remote.url()));
    bootstrap.fill(&[nowhere.announcement(local.url(), EPOCH + 10)]);
    eventually(&cli, "it is let go of", SOON, || cli.log().matches("no longer needed").count() > 1).await;
    sleep(Duration::from_millis(500)).await;
    remote.clear_record();
    let root = here.root(READERS[0], 1621, "a", EPOCH + 20);
    remote.fill(&[root.clone(), status(READERS[0], &root, EPOCH + 21)]);
    sleep(Duration::from_secs(2)).await;
    assert!(remote.frames().is_empty());
    assert!(!get(http, "/metrics").await.contains(remote.url()), "nothing is left of it");
    assert!(jobs(&cli).await.iter().all(|(peer, ..)| peer != remote.url()));
    stop(&cli, running).await;
}

/// Filters that are packed into one, as there are many, are not fetched anew from a relay that has
/// to be listed; nor is one that has become smaller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_packed_is_not_fetched_again() {
    let (local, remote) = (grasp_relay().await, ModelRelay::start(no_negentropy()).await);
    let (cli, running) = start(&config(&local, &[&remote], PRIVATE));
    let mut held = BTreeSet::new();
    for n in 1..=11 {
        let repository = Repository::new(n, "r", &[]);
        let at = EPOCH + 1000 * u64::from(n);
        let events = [repository.announcement(local.url(), at), repository.root(READERS[0], 1621, "a", at + 1)];
        remote.fill(&events);
        held.extend(events.map(|event| event.id));
        holds(&cli, &local, &held, SOON).await;
        converges(&cli, remote.url(), 9, SOON).await;
    }
    let packed = || {
        let asked = remote.frames().into_iter().filter(|frame| frame.verb == "REQ");
        asked.filter(|frame| frame.text.contains("\"#a\"") && frame.text.matches("30617:").count() >= 9).count()
    };
    eventually(&cli, "they are packed", SOON, || packed() > 0).await;
    sleep(Duration::from_secs(2)).await;
    let of_many = |frame: &crate::support::model::Frame| {
        frame.verb == "REQ" && frame.text.matches("30617:").count() >= 9 && !frame.text.contains("\"limit\":1}")
    };
    let whole: Vec<_> = remote.frames().into_iter().filter(of_many).filter(|f| !f.text.contains("\"since\"")).collect();
    assert!(whole.is_empty(), "{whole:#?}");
    stop(&cli, running).await;
}

/// The file is read again while there are discovered jobs: they go on, until it wants none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_config_is_read_again() {
    let local = grasp_relay().await;
    let (remote, events) = with_repository(&local, Quirks::default(), 3).await;
    let other = ModelRelay::start(Quirks::default()).await;
    let yaml = config(&local, &[&remote], PRIVATE);
    let (cli, running) = start(&yaml);
    holds(&cli, &local, &accepted(local.url(), &events), SOON).await;
    converges(&cli, remote.url(), 9, SOON).await;
    let connections = |relay: &ModelRelay| relay.frames().iter().map(|frame| frame.connection).max();
    let before = connections(&remote);
    let peer = format!(
        "peers: [{{name: more, url: '{}', direction: pull, interval_seconds: 1, filters: [{{kinds: [1]}}]}}]\n",
        other.url()
    );
    cli.rewrite_config(&format!("{yaml}{peer}"));
    running.signal("HUP").await;
    eventually(&cli, "the new peer is asked", SOON, || other.received("NEG-OPEN") > 0).await;
    assert_eq!(connections(&remote), before, "what was discovered was not disturbed");
    cli.rewrite_config(&format!("local: {{url: '{}'}}\n{peer}", local.url()));
    running.signal("HUP").await;
    eventually(&cli, "discovery ends", SOON, || cli.log().matches("no longer needed").count() > 1).await;
    sleep(Duration::from_millis(500)).await;
    remote.clear_record();
    remote.fill(&[comment(READERS[2], &events[1], EPOCH + 900)]);
    sleep(Duration::from_secs(2)).await;
    assert!(remote.frames().is_empty());
    stop(&cli, running).await;
}

async fn get(port: u16, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}
