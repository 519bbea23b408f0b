//! One client and its own connection to the relay: what either says passes to the other as it
//! came and in order, but for negentropy, which is answered here. Neither is read while the other
//! takes nothing, so that no more than a few frames are held.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::error::{CapacityError, Error};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::leg::{Incoming, Leg};
use super::message::is_negentropy;
use super::refusal::Refusal;
use super::sessions::Sessions;
use crate::clock;

/// Frames that are passed on before those that wait are sent: one flush carries many.
const BATCH: usize = 64;

/// How long sessions may go on when the gateway is to end.
const DRAIN: Duration = Duration::from_secs(4);

/// How long a client with sessions may leave unread what it is sent. Its listing stands still all
/// the while, and others wait for their turn.
const CATCH_UP: Duration = Duration::from_secs(10);

/// One client, and its own connection to the relay.
pub(super) struct Connection<C, R> {
    client: Leg<C>,
    relay: Leg<R>,
    sessions: Sessions,
    /// A negentropy message that waits until the client has taken what was said before.
    held: Option<Utf8Bytes>,
    /// Since when nothing more can be made to wait for the client.
    full: Option<Instant>,
    /// When what is open has to be closed, once the gateway is to end.
    ends: Option<Instant>,
}

/// How a connection ends.
#[derive(Debug)]
enum End {
    ClientClosed(Option<CloseFrame>),
    ClientGone,
    /// It sent what is not taken.
    ClientRefused(CloseFrame),
    RelayClosed(Option<CloseFrame>),
    RelayGone,
    Stopping,
}

/// What a turn of the loop was about.
enum Turn {
    Client(Incoming),
    Relay(Incoming),
    Other,
    Stop,
}

impl<C, R> Connection<C, R>
where
    C: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite + Unpin,
{
    pub(super) fn new(client: Leg<C>, relay: Leg<R>, shared: Arc<Shared>) -> Self {
        Self { client, relay, sessions: Sessions::new(shared), held: None, full: None, ends: None }
    }

    /// Passes on until either side ends, or `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let end = loop {
            if let Err(end) = self.turn(&stop).await {
                break end;
            }
        };
        tracing::debug!(?end, "a client of the gateway has gone");
        self.wind_up(end).await;
    }

    async fn turn(&mut self, stop: &CancellationToken) -> Result<(), End> {
        self.settle();
        if self.ends.is_some() && self.sessions.is_idle() {
            return Err(End::Stopping);
        }
        let (reads_client, reads_relay) = (self.reads_client(), self.reads_relay());
        let (deadline, draining) = (self.deadline(), self.ends.is_some());
        let turn = tokio::select! {
            incoming = poll_fn(|cx| self.client.poll(cx, reads_client)) => Turn::Client(incoming),
            incoming = poll_fn(|cx| self.relay.poll(cx, reads_relay)) => Turn::Relay(incoming),
            // An answer is as much as a client may make us hold.
            () = self.sessions.changed(), if reads_relay => Turn::Other,
            () = tokio::time::sleep_until(deadline.into()) => Turn::Other,
            () = stop.cancelled(), if !draining => Turn::Stop,
        };
        match turn {
            Turn::Client(incoming) => {
                self.on_client(incoming)?;
                for _ in 0..BATCH {
                    let Some(next) = self.reads_client().then(|| self.client.next_now()).flatten() else { break };
                    self.on_client(next)?;
                }
            }
            Turn::Relay(incoming) => {
                self.on_relay(incoming)?;
                for _ in 0..BATCH {
                    let Some(next) = self.reads_relay().then(|| self.relay.next_now()).flatten() else { break };
                    self.on_relay(next)?;
                }
            }
            Turn::Other => {}
            Turn::Stop => {
                self.sessions.stop();
                self.ends = Some(clock::instant() + DRAIN);
            }
        }
        self.tick()
    }

    fn reads_client(&self) -> bool {
        self.relay.has_room() && self.held.is_none()
    }

    fn reads_relay(&self) -> bool {
        self.client.has_room()
    }

    fn on_client(&mut self, incoming: Incoming) -> Result<(), End> {
        match incoming {
            Incoming::Text(text) if is_negentropy(&text) => {
                self.held = Some(text);
                self.settle();
            }
            Incoming::Text(text) if self.sessions.collide(&text) => {
                self.notice("invalid: a text in this message is in use here: choose another subscription id");
            }
            Incoming::Text(text) => self.relay.send(Message::Text(text)),
            Incoming::Binary => self.notice("invalid: binary messages are not taken"),
            Incoming::Close(frame) => return Err(End::ClientClosed(frame)),
            Incoming::Gone(Some(error)) => return Err(refused(&error)),
            Incoming::Gone(None) => return Err(End::ClientGone),
            Incoming::Sent => {}
        }
        Ok(())
    }

    fn on_relay(&mut self, incoming: Incoming) -> Result<(), End> {
        match incoming {
            Incoming::Text(text) => {
                if !self.sessions.take(&text) {
                    self.client.send(Message::Text(text));
                }
                self.settle();
            }
            // Relays speak text.
            Incoming::Binary | Incoming::Sent => {}
            Incoming::Close(frame) => return Err(End::RelayClosed(frame)),
            Incoming::Gone(_) => return Err(End::RelayGone),
        }
        Ok(())
    }

    /// Answers the message that waits, and has all sent that the sessions have to say.
    fn settle(&mut self) {
        if self.client.has_room()
            && let Some(frame) = self.held.take()
        {
            self.sessions.receive(&frame);
        }
        for frame in self.sessions.to_client.drain(..) {
            self.client.send(Message::text(frame));
        }
        for frame in self.sessions.to_relay.drain(..) {
            self.relay.send(Message::text(frame));
        }
        self.full = if self.client.has_room() { None } else { self.full.or_else(|| Some(clock::instant())) };
    }

    fn notice(&mut self, text: &str) {
        self.client.send(Message::text(serde_json::json!(["NOTICE", text]).to_string()));
    }

    fn deadline(&self) -> Instant {
        let legs = self.client.deadline().min(self.relay.deadline());
        [self.sessions.deadline(), self.ends, self.catches_up()].into_iter().flatten().fold(legs, Instant::min)
    }

    /// Until when the client has to have read on.
    fn catches_up(&self) -> Option<Instant> {
        self.full.filter(|_| !self.sessions.is_idle()).map(|since| since + CATCH_UP)
    }

    fn tick(&mut self) -> Result<(), End> {
        let now = clock::instant();
        self.sessions.tick(now);
        if self.catches_up().is_some_and(|late| now >= late) {
            self.sessions.end_all(&Refusal::Slow(CATCH_UP));
        }
        if !self.client.check(now) {
            return Err(End::ClientGone);
        }
        if !self.relay.check(now) {
            return Err(End::RelayGone);
        }
        if self.ends.is_some_and(|ends| now >= ends) { Err(End::Stopping) } else { Ok(()) }
    }

    /// Says on each side how it ended on the other, once all that was said before has arrived.
    async fn wind_up(mut self, end: End) {
        match end {
            End::RelayClosed(_) | End::RelayGone => self.sessions.end_all(&Refusal::Lost),
            End::Stopping => self.sessions.end_all(&Refusal::Stopping),
            End::ClientClosed(_) | End::ClientGone | End::ClientRefused(_) => {}
        }
        self.settle();
        let Self { client, relay, sessions, .. } = self;
        // What they hold is given back at once, however long the farewells take.
        drop(sessions);
        match end {
            End::ClientClosed(frame) => _ = tokio::join!(relay.close(frame), client.hang_up()),
            End::ClientGone => relay.close(None).await,
            End::ClientRefused(frame) => _ = tokio::join!(client.close(Some(frame)), relay.close(None)),
            End::RelayClosed(frame) => _ = tokio::join!(client.close(frame), relay.hang_up()),
            End::RelayGone => client.hang_up().await,
            End::Stopping => {
                let frame = Some(CloseFrame { code: CloseCode::Away, reason: "the gateway is stopping".into() });
                tokio::join!(client.close(frame.clone()), relay.close(frame));
            }
        }
    }
}

/// How a client is told that it broke the rules; one that is not there any more is told nothing.
fn refused(error: &Error) -> End {
    let frame = |code, reason: &'static str| End::ClientRefused(CloseFrame { code, reason: reason.into() });
    match error {
        Error::Capacity(CapacityError::MessageTooLong { .. }) => frame(CloseCode::Size, "the message is too long"),
        Error::Utf8(_) => frame(CloseCode::Invalid, "a text is not UTF-8"),
        Error::Protocol(fault) if !fault_of_the_line(fault) => frame(CloseCode::Protocol, "no WebSocket frame"),
        _ => End::ClientGone,
    }
}

fn fault_of_the_line(fault: &tokio_tungstenite::tungstenite::error::ProtocolError) -> bool {
    use tokio_tungstenite::tungstenite::error::ProtocolError;
    matches!(fault, ProtocolError::ResetWithoutClosingHandshake | ProtocolError::SendAfterClosing)
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
