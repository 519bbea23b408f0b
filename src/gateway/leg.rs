//! One of the two WebSockets of a connection: what waits to be sent, what comes, and whether the
//! other end still lives.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures::{FutureExt, Sink, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use crate::clock;

/// Bytes that wait to be sent before the other side is read no further. With one message more
/// this is the most that a slow reader makes us hold.
const ROOM: usize = 256 << 10;

/// How long the other end may be silent before it is asked for a sign of life, and again after.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the other end has to read what is left for it, and to agree to the end.
const FAREWELL: Duration = Duration::from_secs(3);

/// One WebSocket.
pub(super) struct Leg<S> {
    socket: WebSocketStream<S>,
    outgoing: VecDeque<Message>,
    bytes: usize,
    unflushed: bool,
    heard: Instant,
    asked: bool,
}

/// What has come, or happened.
#[derive(Debug)]
pub(super) enum Incoming {
    Text(Utf8Bytes),
    Binary,
    /// The other end closes.
    Close(Option<CloseFrame>),
    /// It has gone without a word, or broke the rules of WebSockets.
    Gone(Option<Error>),
    /// All that waited is sent.
    Sent,
}

/// What a WebSocket is to be: small buffers, because there are many.
pub(super) fn config(max_message: usize) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(8 << 10)
        .write_buffer_size(16 << 10)
        .max_message_size(Some(max_message))
        .max_frame_size(Some(max_message))
}

impl<S: AsyncRead + AsyncWrite + Unpin> Leg<S> {
    pub(super) fn new(socket: WebSocketStream<S>) -> Self {
        Self { socket, outgoing: VecDeque::new(), bytes: 0, unflushed: false, heard: clock::instant(), asked: false }
    }

    /// Has a message sent, behind those that wait.
    pub(super) fn send(&mut self, message: Message) {
        self.bytes += message.len();
        self.outgoing.push_back(message);
        self.unflushed = true;
    }

    /// Whether more may be made to wait.
    pub(super) const fn has_room(&self) -> bool {
        self.bytes < ROOM
    }

    /// Sends what waits, and reads if that is wanted. Cancel safe.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, read: bool) -> Poll<Incoming> {
        if self.unflushed
            && let Poll::Ready(sent) = self.poll_send(cx)
        {
            return Poll::Ready(match sent {
                Ok(()) => Incoming::Sent,
                Err(error) => Incoming::Gone(Some(error)),
            });
        }
        if !read {
            // Nothing can be heard from it while it is not listened to.
            self.alive();
            return Poll::Pending;
        }
        loop {
            let message = ready!(self.socket.poll_next_unpin(cx));
            self.alive();
            return Poll::Ready(match message {
                Some(Ok(Message::Text(text))) => Incoming::Text(text),
                Some(Ok(Message::Binary(_))) => Incoming::Binary,
                Some(Ok(Message::Close(frame))) => Incoming::Close(frame),
                // Pings are answered by the library.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Err(error)) => Incoming::Gone(Some(error)),
                None => Incoming::Gone(None),
            });
        }
    }

    /// What is here already, if anything: what lets one flush carry many.
    pub(super) fn next_now(&mut self) -> Option<Incoming> {
        poll_fn(|cx| self.poll(cx, true)).now_or_never()
    }

    /// When to look whether it lives.
    pub(super) fn deadline(&self) -> Instant {
        self.heard + if self.asked { PATIENCE * 2 } else { PATIENCE }
    }

    /// Asks a silent end for a sign of life; `false` when there was none.
    pub(super) fn check(&mut self, now: Instant) -> bool {
        let silent = now.saturating_duration_since(self.heard);
        if silent >= PATIENCE && !self.asked {
            self.asked = true;
            self.send(Message::Ping(Vec::new().into()));
        }
        silent < PATIENCE * 2
    }

    /// Sends what waits, then says goodbye with this frame and waits for the other end to agree.
    pub(super) async fn close(mut self, frame: Option<CloseFrame>) {
        self.send(Message::Close(frame));
        let farewell = async {
            // Whatever comes instead of the end is of no use any more.
            while !matches!(poll_fn(|cx| self.poll(cx, true)).await, Incoming::Gone(_)) {}
        };
        // A courtesy, which a dead end must not draw out.
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }

    /// Sends what waits and ends the line without a goodbye, as a process that dies does.
    pub(super) async fn hang_up(mut self) {
        // The library's own answer to a goodbye may wait as well.
        self.unflushed = true;
        let farewell = async {
            while self.unflushed {
                if let Incoming::Gone(_) = poll_fn(|cx| self.poll(cx, false)).await {
                    return;
                }
            }
            // Either fails when the other end has gone, which is what is waited for. Closing
            // with bytes unread would take back what was just sent.
            let _ = self.socket.get_mut().shutdown().await;
            let _ = tokio::io::copy(self.socket.get_mut(), &mut tokio::io::sink()).await;
        };
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }

    fn alive(&mut self) {
        (self.heard, self.asked) = (clock::instant(), false);
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while !self.outgoing.is_empty() {
            ready!(Pin::new(&mut self.socket).poll_ready(cx))?;
            if !self.has_room() {
                // With so much before it, there is only room for one more when the other end reads.
                self.alive();
            }
            if let Some(message) = self.outgoing.pop_front() {
                self.bytes -= message.len();
                Pin::new(&mut self.socket).start_send(message)?;
            }
        }
        ready!(Pin::new(&mut self.socket).poll_flush(cx))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }
}
