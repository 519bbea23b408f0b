//! Relays that are none, or cannot be used, and a state directory that cannot: each time the
//! message names what it is about and what to do, the exit code says so, and the other jobs run.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::cli::{Cli, Output};
use crate::support::events::{Author, EPOCH};
use crate::support::model::{Info, ModelRelay, Quirks, Verdict};
use crate::support::relay::free_port;

const NOTES: &str = r#"{"kinds":[1]}"#;

/// A relay with three notes.
async fn relay_with_notes() -> ModelRelay {
    let relay = ModelRelay::start(Quirks::default()).await;
    relay.fill(&Author::new(1).notes(3, EPOCH));
    relay
}

/// A web server that gives this answer to everything, and its port.
async fn web_server(answer: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                // The client may be gone.
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    port
}

/// A pull from a bad peer, a good one, and the bad one once more.
async fn pull_from(bad: &str) -> (Output, Vec<Value>) {
    let (local, good) = (ModelRelay::start(Quirks::default()).await, relay_with_notes().await);
    let cli = Cli::with_config(&format!(
        "local: {{url: '{}'}}
defaults: {{direction: pull, filters: [{{name: notes, filter: {NOTES}}}]}}
peers:
- {{name: bad, url: '{bad}'}}
- {{name: good, url: '{}'}}
- {{name: also-bad, url: '{bad}/path'}}
",
        local.url(),
        good.url()
    ));
    let output = cli.run(&["sync", "--json"]).await;
    assert_eq!(local.ids(&json!({})).len(), 3, "{output:#?}");
    let reports = output.json_lines();
    (output, reports)
}

#[tokio::test]
async fn a_peer_that_is_no_relay_is_named_and_the_others_carry_on() {
    let closed = format!("ws://127.0.0.1:{}", free_port());
    let html = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 13\r\n\r\n<html></html>";
    let plain = web_server(html).await;
    let rows = [
        (closed, "Connection refused", "check its URL, and that it runs"),
        (format!("ws://127.0.0.1:{plain}"), "not a relay: it answered HTTP 200", "check its URL"),
        (format!("ws://127.0.0.1:{}", web_server("HTTP/1.1 502 Bad Gateway\r\n\r\n").await), "HTTP 502", "check"),
        (format!("ws://127.0.0.1:{}", web_server("220 mail.example ESMTP\r\n").await), "not a relay", "check its URL"),
        (format!("ws://127.0.0.1:{}", web_server("").await), "cannot be reached", "check its URL"),
        (format!("wss://127.0.0.1:{plain}"), "TLS", "a relay without TLS has a ws:// URL"),
        // RFC 6761: no name ends like this.
        ("wss://nobody.invalid".to_owned(), "lookup", "check its URL"),
    ];
    let runs = rows.map(|(url, what, remedy)| async move {
        let (output, reports) = pull_from(&url).await;
        assert_eq!((output.code, reports.len()), (3, 3), "{output:#?}");
        for report in reports {
            if report["peer"] == "good" {
                assert_eq!((&report["outcome"], &report["error"]), (&json!("converged"), &Value::Null));
                continue;
            }
            assert_eq!(report["outcome"], "failed");
            let error = report["error"].as_str().unwrap();
            assert!(error.starts_with(&url) && error.contains(what) && error.contains(remedy), "{error}");
            assert!(error.len() < 400, "{error}");
        }
        assert!(!output.stdout.contains("<html>") && !output.stderr.contains("<html>"));
    });
    futures::future::join_all(runs.into_iter().map(Box::pin)).await;
}

#[tokio::test]
async fn a_local_relay_that_is_down_fails_every_job() {
    let peer = relay_with_notes().await;
    let local = format!("ws://127.0.0.1:{}", free_port());
    let output = Cli::new().run(&["sync", &local, peer.url(), "--filter", NOTES, "--json"]).await;
    let [report] = &output.json_lines()[..] else { panic!("{output:#?}") };
    assert_eq!((output.code, &report["outcome"]), (3, &json!("failed")));
    assert!(report["error"].as_str().unwrap().starts_with(&local), "{report}");

    let table = Cli::new().run(&["sync", &local, peer.url(), "--filter", NOTES]).await;
    assert_eq!(table.code, 3);
    assert!(table.stdout.contains("failed") && table.stdout.contains("Connection refused"), "{}", table.stdout);
}

#[tokio::test]
async fn a_document_that_is_none_is_no_matter() {
    let infos = [
        Info::None,
        Info::Other("200 OK", "text/html", "<html>welcome</html>".into()),
        Info::Other("404 Not Found", "text/plain", "no".into()),
        Info::Other("500 Oops", "application/nostr+json", "{".into()),
        Info::Document(
            json!({"name": 5, "supported_nips": "all", "limitation": {"max_limit": -1, "max_subscriptions": "0"}}),
        ),
        Info::Document(json!([])),
    ];
    for info in infos {
        let (local, peer) = (ModelRelay::start(Quirks::default()).await, relay_with_notes().await);
        peer.change(|quirks| quirks.info = info);
        let output = Cli::new().run(&["sync", local.url(), peer.url(), "--filter", NOTES, "--json"]).await;
        assert_eq!((output.code, local.ids(&json!({})).len()), (0, 3), "{output:#?}");
    }
}

#[tokio::test]
async fn an_id_that_no_relay_returns_is_said_and_remembered() {
    let (local, peer) = (ModelRelay::start(Quirks::default()).await, relay_with_notes().await);
    let lost = peer.ids(&json!({})).pop_first().unwrap();
    peer.change(|quirks| {
        quirks.unserved.insert(lost);
    });
    let cli = Cli::new();
    let arguments = ["sync", local.url(), peer.url(), "--filter", NOTES];
    let first = cli.run(&arguments).await;
    assert_eq!(first.code, 0, "{first:#?}");
    assert!(first.stdout.contains("1 vanished"), "{}", first.stdout);
    let second = cli.run(&[&arguments[..], &["--json"]].concat()).await;
    let report = &second.json_lines()[0];
    assert_eq!((second.code, &report["parked"], &report["bodies_received"]), (0, &json!(1), &json!(0)));
}

#[tokio::test]
async fn a_relay_that_wants_a_key_blocks_its_job() {
    let (local, peer) = (ModelRelay::start(Quirks::default()).await, relay_with_notes().await);
    peer.change(|quirks| quirks.auth = crate::support::model::Auth::required());
    let output = Cli::new().run(&["sync", local.url(), peer.url(), "--filter", NOTES]).await;
    assert_eq!(output.code, 3);
    assert!(output.stdout.contains("blocked") && output.stdout.contains(peer.url()), "{}", output.stdout);
    assert!(output.stdout.contains("give this relay a key with `auth:`"), "{}", output.stdout);
}

/// What a peer says is shown, and cannot steer a terminal or fill a screen.
#[tokio::test]
async fn what_a_relay_says_is_shown_cut_and_clean() {
    let local = ModelRelay::start(Quirks::default()).await;
    let text = format!("rate-limited: \u{1b}]0;owned\u{7}\r\n{}", "no ".repeat(10_000));
    let peer = ModelRelay::start(Quirks::default().on_event(move |_| Verdict::Refuse(text.clone()))).await;
    local.fill(&Author::new(1).notes(3, EPOCH));
    let cli = Cli::with_config(&format!(
        "local: {{url: '{}'}}\npeers: [{{name: p, url: '{}', direction: push, retry: {{cooldown: 100ms}}, filters: [{NOTES}]}}]\n",
        local.url(),
        peer.url()
    ));
    let output = cli.run(&["-vv", "sync"]).await;
    assert_eq!(output.code, 3);
    for text in [&output.stdout, &output.stderr] {
        assert!(text.len() < 20_000 && !text.contains(['\u{1b}', '\u{7}', '\r']), "{text:?}");
    }
    assert!(output.stdout.contains("owned"), "{}", output.stdout);
}

#[tokio::test]
async fn a_state_directory_that_cannot_be_used_is_named() {
    let (local, peer) = (ModelRelay::start(Quirks::default()).await, relay_with_notes().await);
    let cli = Cli::new();
    let file = cli.write("file", "");
    let damaged = cli.directory().join("damaged");
    std::fs::create_dir(&damaged).unwrap();
    std::fs::write(damaged.join("tieline.db"), "not a database".repeat(1000)).unwrap();
    let rows = [
        (file.display().to_string(), "not a directory"),
        (format!("{}/below", file.display()), "not a directory"),
        (damaged.display().to_string(), "move the file away"),
        // Nobody makes a directory there, root neither.
        ("/sys/tieline".to_owned(), "permission denied"),
        ("/proc/tieline".to_owned(), "No such file or directory"),
    ];
    for (directory, what) in rows {
        let arguments = ["--state-dir", &directory, "sync", local.url(), peer.url(), "--filter", NOTES, "--json"];
        let output = bare(&arguments);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{output:#?}");
        assert!(output.stderr.starts_with(&format!("error: {directory}")), "{}", output.stderr);
        assert!(output.stderr.contains(what) && output.stderr.matches(what).count() == 1, "{}", output.stderr);
        assert!(output.stderr.contains("--state-dir") || output.stderr.contains("never correctness"));
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    }
    assert!(peer.frames().is_empty(), "something was asked before the state was there");
}

/// Losing the state costs time and nothing else: a full disk does not stop a sync.
#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_a_sync_goes_on_without_memory() {
    let (local, peer) = (ModelRelay::start(Quirks::default()).await, relay_with_notes().await);
    let cli = Cli::new();
    let script = r#"mount -t tmpfs -o size=4k tieline "$0" 2>&1 || exit 77; exec "$@""#;
    let full = cli.directory().join("full");
    std::fs::create_dir(&full).unwrap();
    let full = full.display().to_string();
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, &full, env!("CARGO_BIN_EXE_tieline")])
        .args(["--state-dir", &full, "sync", local.url(), peer.url(), "--filter", NOTES, "--json"])
        .output();
    let output = match output {
        // Where users may not mount anything there is no such disk to be had.
        Err(error) => return eprintln!("left out: {error}"),
        Ok(output) if output.status.code() == Some(77) || output.stderr.starts_with(b"unshare:") => {
            return eprintln!("left out: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(output) => read(output),
    };
    assert_eq!(output.code, 0, "{output:#?}");
    assert_eq!((output.json_lines()[0]["outcome"].clone(), local.ids(&json!({})).len()), (json!("converged"), 3));
    assert!(output.stderr.contains("no room left to write") && output.stderr.contains(&full), "{}", output.stderr);
}

/// Runs the program without the state directory that `Cli` gives it.
fn bare(arguments: &[&str]) -> Output {
    read(Command::new(env!("CARGO_BIN_EXE_tieline")).env_clear().args(arguments).output().unwrap())
}

fn read(output: std::process::Output) -> Output {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Output { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A peer that takes the connection and says nothing holds nobody up for ever, and others not at
/// all.
#[tokio::test]
async fn a_peer_that_says_nothing_holds_no_other_up() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (local, good) = (ModelRelay::start(Quirks::default()).await, relay_with_notes().await);
    let cli = Cli::with_config(&format!(
        "local: {{url: '{}'}}
defaults: {{direction: pull, filters: [{{name: notes, filter: {NOTES}}}]}}
peers: [{{name: silent, url: 'ws://{}'}}, {{name: good, url: '{}'}}]
",
        local.url(),
        silent.local_addr().unwrap(),
        good.url()
    ));
    let running = cli.spawn(&["sync", "--json"]);
    for _ in 0..1000 {
        if local.ids(&json!({})).len() == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(local.ids(&json!({})).len(), 3);
    running.signal("INT").await;
    let output = running.finish().await;
    assert_eq!(output.code, 130);
    let lines = output.json_lines();
    assert!(lines.iter().any(|report| report["peer"] == "silent" && report["outcome"] == "interrupted"), "{lines:#?}");
}
