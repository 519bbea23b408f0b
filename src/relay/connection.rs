//! Owns the socket: connects when there is something to ask, carries frames, watches that the
//! relay is alive. What the frames mean is the session's business.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::ready;
use std::time::{Duration, Instant};

use futures::future::poll_fn;
use futures::{FutureExt, Sink, Stream, StreamExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, client_async_tls_with_config};

use super::request::{Delivery, Failure, Meter, Request, SessionLimits, Token};
use super::session::Session;
use super::{RelayOptions, Shared, dial};
use crate::clock;
use crate::nostr::PeerText;

/// The largest message taken. A responder without a frame limit answers a full query with up to
/// 2 MB, which is twice as much in hex; events of a megabyte exist.
const MAX_MESSAGE: usize = 6 << 20;

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(250);

/// Frames read before those written in answer are sent: lets one flush carry many.
const READ_BATCH: usize = 256;

pub(super) type Reply = mpsc::UnboundedSender<(Token, Delivery)>;

/// What the holders of a handle want. Its queue is bounded by what they await: a page a side, a
/// few batches, a window of events.
pub(super) enum Command {
    Request { token: Token, request: Request, meter: Arc<Meter>, reply: Reply },
    NegMessage { token: Token, message: Vec<u8> },
    Close { token: Token },
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Serves the commands of all handles, over one connection after another, until the last handle
/// is gone.
pub(super) async fn run(shared: Arc<Shared>, mut inbox: mpsc::UnboundedReceiver<Command>) {
    while let Some(first) = inbox.recv().await {
        let (socket, info) = tokio::join!(connect(&shared.options), shared.info());
        match socket {
            Ok(socket) => {
                let limits = SessionLimits {
                    max_subscriptions: info.subscriptions(shared.options.subscriptions),
                    answer: shared.options.answer_timeout,
                    neg_open: shared.options.neg_open_timeout,
                    cooldown: shared.options.cooldown,
                    can_sign: shared.options.keys.is_some(),
                };
                tracing::debug!(relay = %shared.options.url, "connected");
                shared.view.send_modify(|view| (view.connected, view.connections) = (true, view.connections + 1));
                let mut served = Served {
                    shared: &shared,
                    session: Session::new(limits),
                    replies: HashMap::new(),
                    cooldowns: 0,
                    spoke: clock::instant(),
                };
                let why = served.serve(socket, first, &mut inbox).await;
                tracing::debug!(relay = %shared.options.url, %why, "disconnected");
                shared.failed(&why);
            }
            Err(why) => {
                tracing::debug!(relay = %shared.options.url, %why, "not connected");
                shared.failed(&why);
                refuse(first, &why);
                while let Ok(next) = inbox.try_recv() {
                    refuse(next, &why);
                }
            }
        }
    }
}

fn refuse(command: Command, why: &str) {
    if let Command::Request { token, reply, .. } = command {
        // The asker may have gone away meanwhile.
        let _ = reply.send((token, Delivery::Failed(Failure::Unreachable(why.to_owned()))));
    }
}

async fn connect(options: &RelayOptions) -> Result<Socket, String> {
    let mut config = WebSocketConfig::default();
    config.max_message_size = Some(MAX_MESSAGE);
    config.max_frame_size = Some(MAX_MESSAGE);
    let connector = Connector::Rustls(options.tls.clone());
    let connecting = async {
        let stream = dial::dial(&options.url, options.proxy.as_ref(), options.public_only).await?;
        let url = options.url.as_str();
        let opened = client_async_tls_with_config(url, stream, Some(config), Some(connector)).await;
        opened.map(|(socket, _)| socket).map_err(|error| explain(&error))
    };
    match tokio::time::timeout(options.connect_timeout, connecting).await {
        Ok(result) => result,
        Err(_) => Err(format!("no connection within {} s", options.connect_timeout.as_secs())),
    }
}

/// Says in an operator's words why there is no connection.
fn explain(error: &WsError) -> String {
    let text = match error {
        WsError::Http(response) => {
            format!("not a relay: it answered HTTP {} instead of opening a WebSocket", response.status().as_u16())
        }
        WsError::Protocol(_) | WsError::HttpFormat(_) | WsError::Utf8(_) | WsError::Capacity(_) => {
            format!("not a relay: {error}")
        }
        WsError::Tls(error) => explain_tls(&error.to_string()),
        WsError::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => explain_tls(&error.to_string()),
        WsError::Io(error) => error.to_string(),
        other => other.to_string(),
    };
    PeerText::new(&text).as_str().to_owned()
}

fn explain_tls(error: &str) -> String {
    // As rustls words them.
    if error.contains("corrupt message") {
        format!("TLS: {error}: a relay without TLS has a ws:// URL")
    } else if error.contains("UnknownIssuer") {
        format!("TLS: {error}: name a certificate authority of your own with `tls: {{ca_file: …}}`")
    } else {
        format!("TLS: {error}")
    }
}

/// One connection while it lasts.
struct Served<'a> {
    shared: &'a Shared,
    session: Session,
    replies: HashMap<Token, Reply>,
    cooldowns: u64,
    /// When the relay last said something, pongs aside.
    spoke: Instant,
}

impl Served<'_> {
    /// Returns why the connection ended.
    async fn serve(&mut self, socket: Socket, first: Command, inbox: &mut mpsc::UnboundedReceiver<Command>) -> String {
        let (mut sink, mut stream) = socket.split();
        let mut outgoing = VecDeque::new();
        let mut unflushed = false;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watchdog = Watchdog::new(clock::instant(), self.shared.options.answer_timeout);
        self.take(first);
        let why = loop {
            self.deliver();
            self.sign();
            self.note_cooldowns();
            outgoing.extend(std::iter::from_fn(|| self.session.poll_frame()).map(Message::text));
            unflushed |= !outgoing.is_empty();
            tokio::select! {
                command = inbox.recv() => match command {
                    Some(command) => {
                        self.take(command);
                        while let Ok(command) = inbox.try_recv() {
                            self.take(command);
                        }
                    }
                    None => break "no longer needed".to_owned(),
                },
                message = stream.next() => {
                    watchdog.heard(clock::instant());
                    if let Err(why) = self.read(message, &mut stream) {
                        break why;
                    }
                }
                sent = poll_fn(|cx| poll_send(Pin::new(&mut sink), &mut outgoing, cx)), if unflushed => match sent {
                    Ok(()) => unflushed = false,
                    Err(error) => break explain(&error),
                },
                _ = ticks.tick() => {
                    let now = clock::instant();
                    self.session.tick(now);
                    // A proxy before it, or a relay that hangs, may answer pings for ever.
                    let silent = now.saturating_duration_since(self.spoke);
                    if self.session.is_unanswered() && silent >= self.shared.options.answer_timeout {
                        break "it says nothing any more".to_owned();
                    }
                    match watchdog.look(now) {
                        Alive::Yes => {}
                        Alive::Ask => {
                            outgoing.push_back(Message::Ping(Vec::new().into()));
                            unflushed = true;
                        }
                        Alive::No => break "it no longer answers pings".to_owned(),
                    }
                }
            }
        };
        self.session.lost(&why);
        self.deliver();
        let closing = poll_fn(|cx| Pin::new(&mut sink).poll_close(cx));
        // A courtesy; a dead peer must not hold it up.
        let _ = tokio::time::timeout(Duration::from_millis(200), closing).await;
        why
    }

    fn take(&mut self, command: Command) {
        let now = clock::instant();
        match command {
            Command::Request { token, request, meter, reply } => {
                self.replies.insert(token, reply);
                self.session.request(token, request, meter, now);
            }
            Command::NegMessage { token, message } => self.session.neg_message(token, message, now),
            Command::Close { token } => {
                self.replies.remove(&token);
                self.session.close(token, now);
            }
        }
    }

    /// Reads what has arrived, up to a batch.
    fn read<S>(&mut self, first: Option<Result<Message, WsError>>, stream: &mut S) -> Result<(), String>
    where
        S: Stream<Item = Result<Message, WsError>> + Unpin,
    {
        let mut message = first;
        let mut read = 0;
        loop {
            match message {
                Some(Ok(Message::Text(text))) => {
                    self.spoke = clock::instant();
                    self.session.receive(text.as_str(), self.spoke);
                }
                // Relays speak text; pings are answered by the library.
                Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(frame))) => {
                    let why = frame.map(|frame| format!("{}: {}", frame.code, frame.reason)).unwrap_or_default();
                    return Err(format!("it closed the connection {}", PeerText::new(&why)).trim_end().to_owned());
                }
                Some(Err(error)) => return Err(explain(&error)),
                None => return Err("it closed the connection".to_owned()),
            }
            read += 1;
            // What is taken from the stream is lost unless it is read here.
            if read == READ_BATCH {
                return Ok(());
            }
            match stream.next().now_or_never() {
                Some(next) => message = next,
                None => return Ok(()),
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(notice) = self.session.poll_notice() {
            tracing::debug!(relay = %self.shared.options.url, %notice, "notice");
        }
        while let Some((token, delivery)) = self.session.poll_delivery() {
            let last = !matches!(
                delivery,
                Delivery::Event(_) | Delivery::Invalid(_) | Delivery::Listening | Delivery::NegMessage(_)
            );
            let gone = self.replies.get(&token).is_none_or(|reply| reply.send((token, delivery)).is_err());
            if gone && !last {
                self.session.close(token, clock::instant());
            }
            if gone || last {
                self.replies.remove(&token);
            }
        }
    }

    fn note_cooldowns(&mut self) {
        let new = self.session.cooldowns() - self.cooldowns;
        if new > 0 {
            self.cooldowns += new;
            self.shared.view.send_modify(|view| view.cooldowns += new);
        }
    }

    fn sign(&mut self) {
        let (Some(challenge), Some(keys)) = (self.session.challenge(), &self.shared.options.keys) else { return };
        let signed = keys.sign_auth(self.shared.options.url.as_str(), challenge, clock::now());
        if let Ok((id, event)) = signed {
            self.session.authenticate(id, &event, clock::instant());
        }
    }
}

/// Sends what waits and flushes. Cancel safe: a message leaves the queue only when the socket
/// has room for it.
fn poll_send<S>(
    mut sink: Pin<&mut S>,
    outgoing: &mut VecDeque<Message>,
    cx: &mut std::task::Context<'_>,
) -> std::task::Poll<Result<(), WsError>>
where
    S: Sink<Message, Error = WsError>,
{
    while !outgoing.is_empty() {
        ready!(sink.as_mut().poll_ready(cx))?;
        if let Some(message) = outgoing.pop_front() {
            sink.as_mut().start_send(message)?;
        }
    }
    sink.poll_flush(cx)
}

/// Whether the relay still lives: asked with a ping when it has been silent for a while.
struct Watchdog {
    heard: Instant,
    asked: bool,
    patience: Duration,
}

enum Alive {
    Yes,
    Ask,
    No,
}

impl Watchdog {
    fn new(now: Instant, patience: Duration) -> Self {
        Self { heard: now, asked: false, patience }
    }

    fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.asked = false;
    }

    fn look(&mut self, now: Instant) -> Alive {
        let silent = now.saturating_duration_since(self.heard);
        if silent >= self.patience * 2 {
            Alive::No
        } else if silent >= self.patience && !self.asked {
            self.asked = true;
            Alive::Ask
        } else {
            Alive::Yes
        }
    }
}
