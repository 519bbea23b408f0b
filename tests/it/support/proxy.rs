//! Stands between Tieline and a relay, and breaks the connection on demand.

use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Sink, SinkExt, Stream, StreamExt};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{accept_async, connect_async};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::http::wants_websocket;

/// Messages under way in one direction. A slow reader is felt by the writer beyond it.
const IN_FLIGHT: usize = 1024;

/// Forwards WebSocket connections to a relay, message by message, and plain HTTP as it is.
/// Stops when it is dropped.
pub struct Proxy {
    url: String,
    shared: Arc<Mutex<State>>,
    _stop: DropGuard,
}

/// What happens to a message that comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// After so many messages the connection ends, once: the next one is good.
    CutOnce(usize),
    /// The same, and every later connection ends at once.
    CutForGood(usize),
    /// After so many messages nothing more comes through, and nothing is closed.
    Stall(usize),
}

#[derive(Default)]
struct State {
    fault: Fault,
    /// Messages forwarded, both ways and over all connections.
    messages: usize,
    /// Directions of connections that have fallen silent.
    stalled: usize,
    delay: Duration,
    bytes_per_second: Option<usize>,
}

/// What to do with one message.
enum Fate {
    Forward,
    Cut,
    Stall,
}

impl State {
    fn judge(&mut self, counts: bool) -> Fate {
        match self.fault {
            Fault::CutOnce(after) if self.messages >= after => {
                self.fault = Fault::None;
                Fate::Cut
            }
            Fault::CutForGood(after) if self.messages >= after => Fate::Cut,
            Fault::Stall(after) if self.messages >= after => {
                self.stalled += 1;
                Fate::Stall
            }
            _ => {
                self.messages += usize::from(counts);
                Fate::Forward
            }
        }
    }

    fn refuses(&self) -> bool {
        matches!(self.fault, Fault::CutForGood(after) if self.messages >= after)
    }
}

impl Proxy {
    /// In front of the relay at this URL.
    pub async fn start(relay: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Mutex::new(State::default()));
        let stop = CancellationToken::new();
        let accepting = accept(listener, relay.to_owned(), shared.clone(), stop.clone());
        tokio::spawn(stop.clone().run_until_cancelled_owned(accepting));
        Self { url, shared, _stop: stop.drop_guard() }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Counts from 0 again, with this fault.
    pub fn set_fault(&self, fault: Fault) {
        let mut state = self.shared.lock().unwrap();
        state.messages = 0;
        state.fault = fault;
    }

    /// Messages forwarded since the fault was set, both ways and over all connections.
    pub fn messages(&self) -> usize {
        self.shared.lock().unwrap().messages
    }

    /// How many directions of connections have fallen silent so far. They stay so.
    pub fn stalled(&self) -> usize {
        self.shared.lock().unwrap().stalled
    }

    /// How long each message is under way, whatever else is.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.lock().unwrap().delay = delay;
    }

    /// The most bytes a second, each way and for each connection.
    pub fn set_throttle(&self, bytes_per_second: Option<usize>) {
        self.shared.lock().unwrap().bytes_per_second = bytes_per_second;
    }
}

async fn accept(listener: TcpListener, relay: String, shared: Arc<Mutex<State>>, stop: CancellationToken) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let forwarding = forward(client, relay.clone(), shared.clone());
        tokio::spawn(stop.clone().run_until_cancelled_owned(forwarding));
    }
}

async fn forward(mut client: TcpStream, relay: String, shared: Arc<Mutex<State>>) {
    if shared.lock().unwrap().refuses() {
        return;
    }
    if !wants_websocket(&client).await {
        let host = relay.trim_start_matches("ws://").trim_end_matches('/');
        if let Ok(mut relay) = TcpStream::connect(host).await {
            // Either side may end it.
            let _ = copy_bidirectional(&mut client, &mut relay).await;
        }
        return;
    }
    let Ok(client) = accept_async(client).await else { return };
    let Ok((relay, _)) = connect_async(&relay).await else { return };
    let (to_client, from_client) = client.split();
    let (to_relay, from_relay) = relay.split();
    // The first direction to end drops both sockets.
    tokio::select! {
        () = pump(from_client, to_relay, shared.clone()) => {}
        () = pump(from_relay, to_client, shared) => {}
    }
}

/// Moves messages one way until an end of the line, or a cut.
async fn pump(
    mut from: impl Stream<Item = Result<Message, Error>> + Unpin,
    mut to: impl Sink<Message, Error = Error> + Unpin,
    shared: Arc<Mutex<State>>,
) {
    let (under_way, mut arriving) = mpsc::channel::<(Instant, Message)>(IN_FLIGHT);
    let depart = async {
        while let Some(Ok(message)) = from.next().await {
            let counts = message.is_text() || message.is_binary();
            let fate = shared.lock().unwrap().judge(counts);
            match fate {
                Fate::Forward => {}
                Fate::Cut => break,
                // Not read any more: a ping that is read is answered by this end of the proxy.
                Fate::Stall => pending().await,
            }
            let delay = shared.lock().unwrap().delay;
            if under_way.send((Instant::now() + delay, message)).await.is_err() {
                break;
            }
        }
        // What was judged good arrives before the line ends.
        drop(under_way);
    };
    let arrive = async {
        while let Some((due, message)) = arriving.recv().await {
            sleep_until(due).await;
            let throttle = shared.lock().unwrap().bytes_per_second;
            let bytes = message.len();
            if to.send(message).await.is_err() {
                break;
            }
            if let Some(rate) = throttle {
                sleep(Duration::from_secs_f64(bytes as f64 / rate as f64)).await;
            }
        }
    };
    tokio::select! {
        () = arrive => {}
        () = async { depart.await; pending().await } => {}
    }
}
