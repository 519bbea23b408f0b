//! `status`, `parked`, HTTP, and what none of them says.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::{Peer, SOON, config, equal, eventually, job_becomes, notes, relay, start, status, stop};
use crate::support::cli::Cli;
use crate::support::client::Client;
use crate::support::events::{Author, EPOCH};
use crate::support::files::bytes_below;
use crate::support::http::get;
use crate::support::model::{Auth, ModelRelay, Quirks, Verdict};
use crate::support::relay::free_port;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_state_is_shown_as_one() {
    let cli = Cli::with_config("local: {url: 'ws://127.0.0.1:1'}\n");
    for made in [false, true] {
        if made {
            std::fs::create_dir(cli.directory().join("state")).unwrap();
        }
        assert_eq!(status(&cli).await, json!({"daemon": false, "jobs": [], "parked": []}));
        let table = cli.run(&["status"]).await;
        assert_eq!(
            (table.code, table.stdout.as_str()),
            (0, "nothing has run yet; no daemon is running\n"),
            "{table:#?}"
        );
        let parked = cli.run(&["parked"]).await;
        assert_eq!((parked.code, parked.stdout.as_str()), (0, ""), "{parked:#?}");
    }
    let forgotten = cli.run(&["parked", "--forget"]).await;
    assert_eq!((forgotten.code, forgotten.stdout.as_str()), (0, "0 forgotten\n"), "{forgotten:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_and_parked_work_while_the_daemon_runs_and_after_it_was_killed() {
    let all = notes(1, 6);
    let local = relay(&all[..4]).await;
    let refused = all[0].id.clone();
    let decide = {
        let refused = refused.clone();
        move |event: &crate::support::events::Event| match event.id == refused {
            true => Verdict::Refuse("blocked: not here".to_owned()),
            false => Verdict::Usual,
        }
    };
    let peer = ModelRelay::start(Quirks::default().on_event(decide)).await;
    peer.fill(&all[4..]);
    let peers = [Peer("p", peer.url(), ""), Peer("down", "ws://127.0.0.1:1", "")];
    let (cli, running) = start(&config(local.url(), &peers));
    let converged = |row: &Value| row["state"] == "converged" && row["next_run"].is_u64();
    let row = job_becomes(&cli, "p", SOON, converged).await;
    for key in ["last_attempt", "last_success", "last_whole", "bytes", "duration_ms", "next_run"] {
        assert!(row[key].is_u64(), "{key}: {row:#?}");
    }
    assert_eq!((&row["failures"], &row["last_error"], &row["direction"]), (&json!(0), &Value::Null, &json!("both")));
    job_becomes(&cli, "down", SOON, |row| row["failures"].as_u64() > Some(0) && row["last_success"].is_null()).await;
    let parked = status(&cli).await["parked"].clone();
    assert_eq!(parked.as_array().unwrap().len(), 1, "{parked:#?}");

    let mut table = cli.run(&["status"]).await;
    // It runs every second, and may do so just now.
    for _ in 0..50 {
        if table.stdout.contains("converged") {
            break;
        }
        table = cli.run(&["status"]).await;
    }
    assert_eq!(table.code, 0);
    for part in ["p/notes (both)", "down/notes (both)", "converged", "cannot be reached", "1 parked for"] {
        assert!(table.stdout.contains(part), "{part}:\n{}", table.stdout);
    }
    let only = cli.run(&["status", "--peer", "p"]).await.stdout;
    assert!(only.contains("p/notes") && !only.contains("down/notes"), "{only}");

    running.signal("KILL").await;
    running.finish().await;
    assert!(cli.run(&["status"]).await.stdout.contains("p/notes (both)"));
    assert_eq!(status(&cli).await["parked"], parked);

    // Forgotten while the daemon runs: it is offered again, and refused again.
    let running = cli.spawn_logged(&["run"]);
    let listed = cli.run(&["parked", "--peer", "p"]).await;
    assert!(listed.code == 0 && listed.stdout.contains(&refused), "{listed:#?}");
    assert!(listed.stdout.contains("blocked"), "{listed:#?}");
    let listed = cli.run(&["parked", "--json"]).await.json_lines();
    assert_eq!((listed.len(), &listed[0]["id"]), (1, &json!(refused)));
    assert_eq!(cli.run(&["parked", "--peer", "local"]).await.stdout, "");
    assert_eq!(cli.run(&["parked", "--peer", "nobody"]).await.code, 2);
    let offered = || peer.offered().iter().filter(|id| **id == refused).count();
    let before = offered();
    assert_eq!(cli.run(&["parked", "--peer", "p", "--forget"]).await.stdout, "1 forgotten\n");
    eventually(&cli, "it is offered again", SOON, || offered() > before).await;
    stop(&cli, running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_answers_whatever_the_peers_do() {
    let local = relay(&notes(1, 3)).await;
    let peer = relay(&notes(2, 4)).await;
    let port = free_port();
    let peers = [Peer("p", peer.url(), "interval_seconds: 1, live: true"), Peer("down", "ws://127.0.0.1:1", "")];
    let yaml = format!("http: {{listen: '127.0.0.1:{port}'}}\n") + &config(local.url(), &peers);
    let (cli, running) = start(&yaml);
    eventually(&cli, "the first run", SOON, || equal(&local, &peer, 7)).await;
    job_becomes(&cli, "p", SOON, |row| row["state"] == "converged").await;
    job_becomes(&cli, "down", SOON, |row| row["failures"].as_u64() > Some(0)).await;
    local.fill(&[Author::new(3).note(EPOCH)]);
    eventually(&cli, "it is passed on", SOON, || equal(&local, &peer, 8)).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;

    let (head, body) = get(port, "/healthz").await;
    assert!(head.starts_with("http/1.1 200") && body == "ok", "{head} {body}");
    let (head, body) = get(port, "/metrics").await;
    assert!(head.contains("openmetrics-text"), "{head}");
    for line in [
        r#"tieline_relay_connected{relay="p"} 1"#,
        r#"tieline_relay_connected{relay="down"} 0"#,
        r#"tieline_connection_attempts_total{relay="p",result="ok"} 1"#,
        r#"tieline_jobs{state="converged"} 1"#,
        "tieline_relays_tracked 3",
        "tieline_relays_connected 2",
        "tieline_relays_dead 0",
        "# EOF",
    ] {
        assert!(body.lines().any(|have| have == line), "{line}:\n{body}");
    }
    assert!(body.contains("tieline_live_lag_seconds_bucket"), "{body}");
    let (head, body) = get(port, "/status").await;
    let told: Value = serde_json::from_str(&body).unwrap();
    assert!(head.contains("application/json") && told["jobs"].as_array().unwrap().len() == 2, "{head} {body}");
    let (head, body) = get(port, "/").await;
    assert!(head.contains("text/html") && body.contains("down") && body.contains("converged"), "{head} {body}");

    // A second one cannot have the port, and says so before it does anything.
    let other = Cli::with_config(&yaml);
    let output = other.run(&["run"]).await;
    assert!(output.code != 0 && output.stderr.contains("http.listen"), "{output:#?}");
    stop(&cli, running).await;
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_appears_nowhere() {
    const CONTENT: &str = "an unmistakable sentence of somebody's";
    let local = relay(&[]).await;
    let peer = ModelRelay::start(Quirks { auth: Auth::required(), ..Quirks::default() }).await;
    let said = Author::new(5).note_saying(EPOCH, CONTENT);
    peer.fill(&[said, Author::new(5).note_saying(EPOCH + 1, CONTENT).with_forged_signature()]);
    let port = free_port();
    let more = "interval_seconds: 1, live: true, auth: {secret_key_file: key}";
    let yaml = format!("http: {{listen: '127.0.0.1:{port}'}}\n") + &config(local.url(), &[Peer("p", peer.url(), more)]);
    let cli = Cli::with_config(&yaml);
    let secret = Client::author().secret();
    let key = cli.write("key", &secret);
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();

    let mut shown = Vec::new();
    for format in ["text", "json"] {
        let running = cli.spawn_logged(&["-vvv", "--log-format", format, "run"]);
        eventually(&cli, "HTTP", SOON, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()).await;
        job_becomes(&cli, "p", SOON, |row| row["state"] == "converged").await;
        eventually(&cli, "what can be moved is", SOON, || local.ids(&json!({})).len() == 1).await;
        peer.fill(&[Author::new(6).note_saying(EPOCH, CONTENT).with_forged_signature()]);
        running.signal("HUP").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        for path in ["/", "/metrics", "/status", "/healthz", "/style.css"] {
            let (head, body) = get(port, path).await;
            shown.extend([head, body]);
        }
        shown.push(status(&cli).await.to_string());
        shown.push(cli.run(&["-vvv", "status"]).await.stdout);
        shown.push(format!("{:?}", cli.run(&["-vvv", "parked"]).await));
        stop(&cli, running).await;
        shown.push(String::from_utf8_lossy(&bytes_below(&cli.directory().join("state"))).into_owned());
    }
    shown.push(cli.log());
    assert!(cli.log().contains("connected"), "that is the whole of it");

    let auths: Vec<Value> = peer
        .frames()
        .iter()
        .filter(|frame| frame.verb == "AUTH")
        .map(|frame| serde_json::from_str(&frame.text).unwrap())
        .collect();
    let mut secrets = vec![secret.clone(), nsec(&secret), CONTENT.to_owned()];
    secrets.extend(auths.iter().filter_map(|auth| Some(auth[1]["sig"].as_str()?.to_owned())));
    secrets.extend(auths.iter().filter_map(|auth| Some(auth[1].as_str()?.to_owned())));
    assert!(secrets.len() > 5, "no AUTH took place");
    for text in &shown {
        let text = text.to_lowercase();
        for secret in &secrets {
            if let Some(at) = text.find(&secret.to_lowercase()) {
                let line = text[..at].rfind('\n').map_or(0, |start| start + 1);
                panic!("{secret}: …{}", text[line..].lines().next().unwrap());
            }
        }
    }
}

fn nsec(secret: &str) -> String {
    use nostr::nips::nip19::ToBech32;
    nostr::key::Keys::parse(secret).unwrap().secret_key().to_bech32().unwrap()
}

/// The file is broken while the daemon runs: `status` shows the state that the file means, or none,
/// and never says of another state that no daemon runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_config_does_not_hide_the_daemon() {
    let (local, peer) = (relay(&notes(1, 3)).await, relay(&[]).await);
    // Relative to where it is started, which is where the daemon keeps it.
    let yaml = format!("state_dir: state\n{}", config(local.url(), &[Peer("p", peer.url(), "")]));
    let (cli, running) = start(&yaml);
    eventually(&cli, "a run", SOON, || equal(&local, &peer, 3)).await;
    cli.rewrite_config(&yaml.replace("direction", "derection"));
    let output = cli.run_as_configured(&["status", "--json"]).await;
    assert_eq!((output.code, output.json_lines()[0]["daemon"].as_bool()), (0, Some(true)), "{output:#?}");
    cli.rewrite_config("local: {url: ");
    let output = cli.run_as_configured(&["status", "--json"]).await;
    assert_eq!(output.code, 2, "{output:#?}");
    assert!(output.stderr.contains("does not say where the state is"), "{output:#?}");
    stop(&cli, running).await;
}
