//! What `status` says of jobs that wait, run, were cut off, or are not configured.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{Peer, SOON, config, equal, eventually, job, job_becomes, notes, relay, start, status, stop};
use crate::support::cli::Cli;
use crate::support::events::now;
use crate::support::http::get;
use crate::support::model::{ModelRelay, Quirks};
use crate::support::relay::free_port;

fn names(status: &Value) -> Vec<&str> {
    status["jobs"].as_array().unwrap().iter().map(|job| job["peer"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_shown_before_its_first_run_and_waits_for_nothing_without_a_daemon() {
    let (local, hand, slow) = (relay(&[]).await, relay(&[]).await, relay(&[]).await);
    let peers =
        [Peer("hand", hand.url(), "schedule: manual"), Peer("slow", slow.url(), "schedule: {cron: '0 0 1 1 *'}")];
    let cli = Cli::with_config(&config(local.url(), &peers));
    let idle = |told: &Value, daemon: bool| {
        assert_eq!((names(told), &told["daemon"]), (vec!["hand", "slow"], &json!(daemon)), "{told:#}");
        for row in told["jobs"].as_array().unwrap() {
            assert_eq!(
                (&row["state"], &row["running"], &row["last_attempt"]),
                (&json!("idle"), &json!(false), &Value::Null)
            );
            let due = daemon && row["peer"] == "slow";
            assert_eq!(row["next_run"].as_u64().is_some_and(|at| at > now()), due, "{told:#}");
        }
    };
    idle(&status(&cli).await, false);
    let running = cli.spawn_logged(&["run"]);
    job_becomes(&cli, "slow", SOON, |row| row["next_run"].is_u64()).await;
    idle(&status(&cli).await, true);
    let table = cli.run(&["status"]).await.stdout;
    for part in ["hand/notes (both)", "never", "in ", "the daemon is running"] {
        assert!(table.contains(part), "{part}:\n{table}");
    }
    running.signal("KILL").await;
    running.finish().await;
    idle(&status(&cli).await, false);

    let running = cli.spawn_logged(&["run"]);
    eventually(&cli, "it runs", SOON, || cli.log().matches("running").count() >= 2).await;
    stop(&cli, running).await;
    idle(&status(&cli).await, false);
    assert!(cli.run(&["status"]).await.stdout.contains("no daemon is running"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_no_longer_configured_is_shown_when_asked_for() {
    let all = notes(1, 3);
    let (local, peer) = (relay(&all).await, relay(&[]).await);
    let cli = Cli::with_config(&config(local.url(), &[Peer("old", peer.url(), "")]));
    assert_eq!(cli.run(&["sync"]).await.code, 0);
    assert_eq!(names(&status(&cli).await), ["old"]);

    cli.rewrite_config(&config(local.url(), &[Peer("new", peer.url(), "direction: pull, interval_seconds: 1")]));
    let shown = |daemon| {
        let cli = &cli;
        async move {
            let told = status(cli).await;
            assert_eq!((names(&told), &told["daemon"]), (vec!["new"], &json!(daemon)), "{told:#}");
            let all = cli.run(&["status", "--all", "--json"]).await.json_lines().remove(0);
            let marks: Vec<_> = all["jobs"].as_array().unwrap().iter().map(|job| job["configured"] == true).collect();
            assert_eq!((names(&all), marks), (vec!["new", "old"], vec![true, false]), "{all:#}");
            let table = cli.run(&["status"]).await.stdout;
            assert!(!table.contains("old/notes") && table.contains("--all"), "{table}");
            assert!(cli.run(&["status", "--all"]).await.stdout.contains("old/notes (both), not configured"));
        }
    };
    shown(false).await;
    let running = cli.spawn_logged(&["run"]);
    job_becomes(&cli, "new", SOON, |row| row["state"] == "converged").await;
    shown(true).await;

    // The daemon's config is the one in force, until it is told to read the file again.
    cli.rewrite_config(&config(local.url(), &[Peer("newer", peer.url(), "direction: push, interval_seconds: 1")]));
    assert_eq!(names(&status(&cli).await), ["new"]);
    running.signal("HUP").await;
    job_becomes(&cli, "newer", SOON, |row| row["state"] == "converged").await;
    assert_eq!(names(&status(&cli).await), ["newer"]);
    stop(&cli, running).await;
    assert_eq!(names(&status(&cli).await), ["newer"]);
}

/// By the daemon and by a one-shot run: it is seen while it goes on, and no longer when it was killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_under_way_is_shown_as_it_goes_on() {
    let local = relay(&notes(1, 3000)).await;
    // 5 ms for each OK, one after the other.
    let peer = ModelRelay::start(Quirks { delay: Duration::from_millis(5), ..Quirks::default() }).await;
    let port = free_port();
    let yaml = format!("http: {{listen: '127.0.0.1:{port}'}}\n")
        + &config(local.url(), &[Peer("p", peer.url(), "direction: push, interval_seconds: 1")]);
    let cli = Cli::with_config(&yaml);
    for command in ["run", "sync"] {
        let running = cli.spawn_logged(&[command]);
        let busy = |row: &Value| row["running"] == true && row["up"].as_u64() > Some(0);
        let first = job_becomes(&cli, "p", SOON, busy).await;
        let state = first["state"].as_str().unwrap();
        assert!(matches!(state, "reconciling" | "transferring"), "{first:#}");
        let more = job_becomes(&cli, "p", SOON, |row| row["up"].as_u64() > first["up"].as_u64()).await;
        assert!(more["bytes"].as_u64() > first["bytes"].as_u64(), "{more:#}");
        assert!(more["next_run"].is_null() && more["duration_ms"].as_u64() > Some(0), "{more:#}");
        println!("{command}: {state} {} then {} of 3000", first["up"], more["up"]);
        assert_eq!(status(&cli).await["daemon"], command == "run");
        if command == "run" {
            let told: Value = serde_json::from_str(&get(port, "/status").await.1).unwrap();
            assert_eq!((&told["daemon"], &told["jobs"][0]["running"]), (&json!(true), &json!(true)), "{told:#}");
            let page = get(port, "/").await.1;
            assert!(page.contains("under way"), "{page}");
            let metrics = get(port, "/metrics").await.1;
            assert!(metrics.contains(&format!("tieline_jobs{{state=\"{state}\"}} 1")), "{metrics}");
        }
        assert!(peer.ids(&json!({})).len() < 2900, "it is about to be over");
        running.signal("KILL").await;
        running.finish().await;
        let cut = job(&cli, "p").await.unwrap();
        assert_eq!((&cut["state"], &cut["running"]), (&json!("idle"), &json!(false)), "{cut:#}");
        assert!(cut["last_error"].as_str().unwrap().contains("cut off"), "{cut:#}");
    }
    peer.change(|quirks| quirks.delay = Duration::ZERO);
    assert_eq!(cli.run(&["sync"]).await.code, 0);
    assert!(equal(&local, &peer, 3000));
    let row = job(&cli, "p").await.unwrap();
    assert_eq!((&row["state"], &row["last_error"]), (&json!("converged"), &Value::Null), "{row:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_daemon_writes_nothing() {
    let (local, peer, hand) = (relay(&notes(1, 3)).await, relay(&[]).await, relay(&[]).await);
    let peers =
        [Peer("p", peer.url(), "interval_seconds: 300, live: true"), Peer("hand", hand.url(), "schedule: manual")];
    let (cli, running) = start(&config(local.url(), &peers));
    job_becomes(&cli, "p", Duration::from_secs(60), |row| row["state"] == "converged").await;
    sleep(Duration::from_secs(2)).await;
    let written = || {
        let files = std::fs::read_dir(cli.directory().join("state")).unwrap().map(|entry| entry.unwrap());
        // The index of the log in memory is written to by who reads.
        let files = files.filter(|file| file.path().is_file() && !file.path().ends_with("tieline.db-shm"));
        let mut files: Vec<(_, SystemTime)> =
            files.map(|file| (file.file_name(), file.metadata().unwrap().modified().unwrap())).collect();
        files.sort();
        files
    };
    let before = written();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(written(), before, "{}", cli.log());
    stop(&cli, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_says_once_that_a_live_relay_is_lost_and_that_it_is_back() {
    let (local, peer) = (relay(&[]).await, relay(&[]).await);
    let cli = Cli::with_config(&config(local.url(), &[Peer("p", peer.url(), "schedule: manual, live: true")]));
    let running = cli.spawn_logged(&["run"]);
    job_becomes(&cli, "p", SOON, |row| row["state"] == "converged").await;
    sleep(Duration::from_secs(2)).await;
    let said = |what: &str| {
        let log = cli.log();
        log.lines().filter(|line| line.contains("INFO") && line.contains(what) && line.contains(r#"relay="p""#)).count()
    };
    let (lost, back) = ("streams: the connection is lost", "streams: connected again");
    assert_eq!((said(lost), said(back)), (0, 0), "{}", cli.log());
    peer.stop();
    eventually(&cli, "it is lost", SOON, || said(lost) == 1).await;
    sleep(Duration::from_secs(3)).await;
    peer.start_again().await;
    eventually(&cli, "it is back", SOON, || said(back) == 1).await;
    assert_eq!(said(lost), 1, "{}", cli.log());

    // Four lines in a minute at the most.
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(8) {
        peer.disconnect();
        sleep(Duration::from_millis(700)).await;
    }
    let lines = said(lost) + said(back);
    assert!((3..=4).contains(&lines), "{lines} lines:\n{}", cli.log());
    stop(&cli, running).await;
    assert_eq!(said(lost) + said(back), lines, "an end that is meant is no loss:\n{}", cli.log());
}

/// A key that cannot be read is its peer's trouble alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_cannot_be_read_fails_its_own_jobs() {
    let all = notes(1, 6);
    let (local, good, bad) = (relay(&all[..3]).await, relay(&[]).await, relay(&[]).await);
    let keyed = "interval_seconds: 1, auth: {secret_key_file: missing}";
    let cli = Cli::with_config(&config(local.url(), &[Peer("bad", bad.url(), keyed), Peer("good", good.url(), "")]));
    let output = cli.run(&["sync", "--json"]).await;
    assert_eq!(output.code, 3, "{output:#?}");
    let reports = output.json_lines();
    let of = |peer: &str| reports.iter().find(|report| report["peer"] == peer).unwrap();
    assert_eq!((&of("good")["outcome"], &of("bad")["outcome"]), (&json!("converged"), &json!("failed")));
    let error = of("bad")["error"].as_str().unwrap();
    assert!(error.contains("the key for bad") && error.contains("missing"), "{error}");
    assert!(equal(&local, &good, 3));
    assert_eq!(cli.run(&["check"]).await.code, 2, "it is a mistake all the same");
    assert_eq!(cli.run(&["sync", "--peer", "good"]).await.code, 0);

    let running = cli.spawn_logged(&["run"]);
    let row = job_becomes(&cli, "bad", SOON, |row| row["failures"].as_u64() > Some(1)).await;
    assert!(row["state"] == "failed" && row["last_error"].as_str().unwrap().contains("the key for bad"), "{row:#}");
    local.fill(&all[3..]);
    eventually(&cli, "the good one goes on", SOON, || equal(&local, &good, 6)).await;

    // A reload for another reason is not refused for it, and one with a key mends it.
    let third = relay(&[]).await;
    let more = [Peer("bad", bad.url(), keyed), Peer("good", good.url(), ""), Peer("third", third.url(), "")];
    cli.rewrite_config(&config(local.url(), &more));
    running.signal("HUP").await;
    eventually(&cli, "the third", SOON, || equal(&local, &third, 6)).await;
    let key = cli.write("missing", &crate::support::client::Client::author().secret());
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    running.signal("HUP").await;
    eventually(&cli, "the bad one is good", SOON, || equal(&local, &bad, 6)).await;
    job_becomes(&cli, "bad", SOON, |row| row["state"] == "converged" && row["failures"] == 0).await;
    stop(&cli, running).await;
}
