//! The built program: the gateway within the daemon, and alone.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::{SOON, inventory};
use crate::support::cli::{Cli, Running};
use crate::support::events::{Author, EPOCH};
use crate::support::model::{ModelRelay, Quirks};
use crate::support::relay::free_port;

fn config(relay: &str, gateway: u16, http: u16, limits: &str) -> String {
    format!(
        "local: {{url: '{relay}'}}\n\
         gateway: {{listen: '127.0.0.1:{gateway}', limits: {{{limits}}}}}\n\
         http: {{listen: '127.0.0.1:{http}'}}\n"
    )
}

async fn logged(cli: &Cli, text: &str) {
    let started = Instant::now();
    while !cli.log().contains(text) {
        assert!(started.elapsed() < SOON, "{text:?} is not logged:\n{}", cli.log());
        sleep(Duration::from_millis(20)).await;
    }
}

async fn metric(http: u16, name: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", http)).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{name} is not in {text}")).trim().to_owned()
}

async fn stop(running: Running, cli: &Cli) {
    let started = Instant::now();
    running.signal("TERM").await;
    assert_eq!(running.finish().await.code, 0, "{}", cli.log());
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_runs_within_the_daemon_and_alone() {
    let relay = ModelRelay::start(Quirks::default()).await;
    relay.fill(&Author::new(1).notes(30, EPOCH));
    for command in ["run", "gateway"] {
        let (port, http) = (free_port(), free_port());
        let cli = Cli::with_config(&config(relay.url(), port, http, ""));
        let running = cli.spawn_logged(&["-v", command]);
        logged(&cli, "the gateway listens").await;
        let url = format!("ws://127.0.0.1:{port}");
        assert_eq!(inventory(&url, &json!({"kinds": [1]})).await.len(), 30, "{command}");
        assert_eq!(metric(http, "tieline_gateway_listed_events_total").await, "30", "{command}");

        // What changes for it takes a restart, and says so.
        cli.rewrite_config(&config(relay.url(), port, http, "sessions: 5"));
        running.signal("HUP").await;
        logged(&cli, "what changed for it takes a restart").await;
        let mut client = crate::support::client::Client::connect(&url).await;
        super::open(&mut client, "a", &json!({"kinds": [1]})).await;
        super::word(&mut client, "a").await;
        assert_eq!(metric(http, "tieline_gateway_sessions ").await, "1", "{command}");
        stop(running, &cli).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_it_is_said() {
    let cli = Cli::with_config("local: {url: 'ws://127.0.0.1:1'}\n");
    let output = cli.run(&["gateway"]).await;
    assert!(output.code == 2 && output.stderr.contains("there is no `gateway:` in it"), "{output:?}");

    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let cli = Cli::with_config(&config("ws://127.0.0.1:1", port, free_port(), ""));
    for command in ["gateway", "run"] {
        let output = cli.run(&[command]).await;
        let said = format!("gateway.listen 127.0.0.1:{port}");
        assert!(output.code == 2 && output.stderr.contains(&said), "{command}: {output:?}");
    }
    let output = cli.run(&["--help"]).await;
    assert!(output.stdout.contains("The gateway alone"), "{output:?}");
}
