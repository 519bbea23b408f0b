//! What a service manager is told, by the real program: this test stands in for systemd
//! (sd_notify(3)).

use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::time::{Instant, timeout};

use super::{Peer, SOON, config, equal, eventually, notes, relay, stop};
use crate::support::cli::Cli;

struct Manager {
    socket: UnixDatagram,
    heard: Vec<String>,
}

impl Manager {
    /// Waits for a message with this line, and returns it.
    async fn hears(&mut self, line: &str) -> String {
        let started = Instant::now();
        loop {
            let mut buffer = [0; 1024];
            let left = SOON.saturating_sub(started.elapsed());
            let length = timeout(left, self.socket.recv(&mut buffer));
            let length = length.await.unwrap_or_else(|_| panic!("no {line} in {:?}", self.heard)).unwrap();
            let message = String::from_utf8(buffer[..length].to_vec()).unwrap();
            self.heard.push(message.clone());
            if message.lines().any(|heard| heard == line) {
                return message;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_manager_is_told_what_it_needs_to_know() {
    let (local, peer) = (relay(&notes(1, 3)).await, relay(&[]).await);
    let cli = Cli::with_config(&config(local.url(), &[Peer("p", peer.url(), "")]));
    let path = cli.directory().join("notify");
    let mut manager = Manager { socket: UnixDatagram::bind(&path).unwrap(), heard: Vec::new() };
    let variables = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "1000000")];
    let running = cli.spawn_with(&["run"], &variables);
    manager.hears("READY=1").await;
    assert!(manager.heard.iter().all(|message| !message.contains("STOPPING")), "{:?}", manager.heard);
    // Twice as often as it has to.
    let started = Instant::now();
    for _ in 0..4 {
        manager.hears("WATCHDOG=1").await;
    }
    assert!(started.elapsed() < Duration::from_millis(2900), "fed after {:?}", started.elapsed());

    running.signal("HUP").await;
    let message = manager.hears("RELOADING=1").await;
    assert!(message.contains("MONOTONIC_USEC="), "Type=notify-reload needs it: {message}");
    manager.hears("READY=1").await;
    eventually(&cli, "it works", SOON, || equal(&local, &peer, 3)).await;

    // A config that is refused is the old one, and it is ready all the same.
    cli.rewrite_config("peers: [");
    running.signal("HUP").await;
    manager.hears("RELOADING=1").await;
    manager.hears("READY=1").await;
    let stopping = tokio::spawn(async move { manager.hears("STOPPING=1").await });
    stop(&cli, running).await;
    stopping.await.unwrap();
}
