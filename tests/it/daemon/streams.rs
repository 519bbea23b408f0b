//! More streams than a relay allows subscriptions, jobs that overlap, and settings that change.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::{SOON, eventually, job_becomes, relay, start, stop};
use crate::support::events::{Author, EPOCH, now};
use crate::support::model::{Auth, Info, ModelRelay, Quirks};

/// A config whose jobs run only when a stream asks for it: a peer with one filter per author.
fn by_author(local: &str, peer: &str, authors: impl IntoIterator<Item = u8>) -> String {
    let mut yaml = format!(
        "local: {{url: '{local}'}}\npeers:\n- {{name: p, url: '{peer}', direction: both, schedule: manual, live: true, \
         filters: [\n"
    );
    for author in authors {
        let pubkey = Author::new(author).pubkey();
        yaml += &format!("  {{name: a{author}, filter: {{authors: ['{pubkey}'], kinds: [1, 5]}}}},\n");
    }
    yaml + "]}\n"
}

/// The job of each author, with the time of its last run.
async fn last_runs(cli: &crate::support::cli::Cli) -> BTreeMap<String, u64> {
    let status = super::status(cli).await;
    let jobs = status["jobs"].as_array().unwrap().iter();
    jobs.map(|job| (job["filter"].as_str().unwrap().to_owned(), job["last_attempt"].as_u64().unwrap_or(0))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_joined_where_a_relay_allows_few() {
    const ALLOWED: usize = 5;
    // A relay that says how many it allows, and one that is found out.
    for announces in [true, false] {
        let info = match announces {
            true => Info::Document(json!({"limitation": {"max_subscriptions": ALLOWED}})),
            false => Info::Document(json!({})),
        };
        let few = ModelRelay::start(Quirks { max_subscriptions: Some(ALLOWED), info, ..Quirks::default() }).await;
        let many = relay(&[]).await;
        for author in 1..=12 {
            few.fill(&[Author::new(author).note(EPOCH)]);
        }
        let (cli, running) = start(&by_author(few.url(), many.url(), 1..=12));
        eventually(&cli, "history", SOON, || super::equal(&few, &many, 12)).await;
        let mut count = 12;
        let mut pass_on = async |authors: std::ops::RangeInclusive<u8>, cli: &crate::support::cli::Cli| {
            for author in authors {
                few.fill(&[Author::new(author).note(now())]);
                many.fill(&[Author::new(author).note(now() - 1)]);
                count += 2;
            }
            eventually(cli, "all are passed on", SOON * 2, || super::equal(&few, &many, count)).await;
        };
        pass_on(1..=12, &cli).await;
        if !announces {
            assert!(cli.log().contains("takes fewer subscriptions"), "{}", cli.log());
            stop(&cli, running).await;
            continue;
        }
        assert_eq!(few.sent("CLOSED"), 0, "it was never asked for more:\n{}", cli.log());

        // Two more: filters are joined, and no history is fetched again.
        sleep(Duration::from_millis(2500)).await;
        let before = last_runs(&cli).await;
        cli.rewrite_config(&by_author(few.url(), many.url(), 1..=14));
        running.signal("HUP").await;
        for name in ["a13", "a14"] {
            super::eventually(&cli, "the reload", SOON, || cli.log().contains("the config was read again")).await;
            job_of(&cli, name).await;
        }
        pass_on(13..=14, &cli).await;
        let after = last_runs(&cli).await;
        for (name, at) in before.iter().filter(|(name, _)| !["a13", "a14"].contains(&name.as_str())) {
            assert_eq!(after[name], *at, "{name} ran again:\n{}", cli.log());
        }
        assert_eq!(few.sent("CLOSED"), 0, "one place was kept free:\n{}", cli.log());
        stop(&cli, running).await;
    }
}

/// Waits until a job has converged.
async fn job_of(cli: &crate::support::cli::Cli, name: &str) {
    for _ in 0..200 {
        let status = super::status(cli).await;
        let jobs = status["jobs"].as_array().unwrap();
        if jobs.iter().any(|job| job["filter"] == name && job["state"] == "converged") {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("{name} does not converge:\n{}", cli.log());
}

/// One event, two jobs that want it: it goes over once, and does not come back by the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_overlap_send_each_event_once() {
    let (local, peer) = (relay(&[]).await, relay(&[]).await);
    let author = Author::new(1).pubkey();
    let yaml = format!(
        "local: {{url: '{}'}}\npeers:\n- {{name: p, url: '{}', direction: both, schedule: manual, live: true, filters: \
         [{{name: one, filter: {{kinds: [1]}}}}, {{name: two, filter: {{authors: ['{author}']}}}}]}}\n",
        local.url(),
        peer.url()
    );
    let (cli, running) = start(&yaml);
    job_of(&cli, "one").await;
    job_of(&cli, "two").await;
    sleep(Duration::from_secs(1)).await;
    for (count, from) in [(10, &local), (20, &peer)] {
        let first = now() + count as u64;
        from.fill(&(0..10).map(|n| Author::new(1).note(first + n)).collect::<Vec<_>>());
        eventually(&cli, "it is passed on", SOON, || super::equal(&local, &peer, count)).await;
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!((local.offered().len(), peer.offered().len()), (10, 10), "{}", cli.log());
    stop(&cli, running).await;
}

/// A key that comes with a reload reaches the streams as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_reaches_the_streams() {
    let local = relay(&[]).await;
    let peer = ModelRelay::start(Quirks { auth: Auth::required(), ..Quirks::default() }).await;
    let config = |auth: &str| {
        format!(
            "local: {{url: '{}'}}\npeers:\n- {{name: p, url: '{}', direction: both, live: true, schedule: manual, {auth} \
             filters: [{{name: notes, filter: {{kinds: [1, 5]}}}}]}}\n",
            local.url(),
            peer.url()
        )
    };
    let (cli, running) = start(&config(""));
    job_becomes(&cli, "p", SOON, |row| row["state"] == "blocked").await;
    let key = cli.write("key", &Author::new(9).secret());
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    cli.rewrite_config(&config(&format!("auth: {{secret_key_file: '{}'}},", key.display())));
    running.signal("HUP").await;
    job_becomes(&cli, "p", SOON, |row| row["state"] == "converged").await;
    for (n, from) in [(1, &local), (2, &peer)] {
        from.fill(&[Author::new(n).note(now())]);
        eventually(&cli, "it is passed on", SOON, || super::equal(&local, &peer, usize::from(n))).await;
    }
    stop(&cli, running).await;
}

/// A relay that takes no stream at all is not asked again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_takes_no_stream_is_left_in_peace() {
    let none = ModelRelay::start(Quirks { max_subscriptions: Some(0), ..Quirks::default() }).await;
    let other = relay(&[]).await;
    let (cli, running) = start(&by_author(none.url(), other.url(), 1..=3));
    eventually(&cli, "it was asked", SOON, || none.received("REQ") > 0).await;
    sleep(Duration::from_secs(4)).await;
    let asked = none.received("REQ");
    assert!(asked <= 40, "{asked} times:\n{}", cli.log());
    stop(&cli, running).await;
}
