//! Connections that take no more than a page needs: in number, in time and in what they send.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// Browsers open six at a time; a few people and machines look at once.
const CONNECTIONS: usize = 64;

/// How long one may last. A client that is cut off between two requests connects again.
const LIFE: Duration = Duration::from_secs(120);

/// Bytes from a client before an answer. A browser's request has one or two thousand.
const REQUEST: usize = 16 << 10;

/// Accepts only as many connections as are wanted; more wait outside.
pub(super) struct Bounded {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(CONNECTIONS)) }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // The semaphore is never closed.
        let permit = self.room.clone().acquire_owned().await.ok();
        let (stream, from) = Listener::accept(&mut self.listener).await;
        let life = Box::pin(tokio::time::sleep(LIFE));
        (Connection { stream, life, unanswered: 0, _permit: permit }, from)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

pub(super) struct Connection {
    stream: TcpStream,
    life: Pin<Box<Sleep>>,
    /// Bytes read since something was last written.
    unanswered: usize,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.life.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if self.unanswered > REQUEST {
            return Err(io::Error::other("the request is too large"));
        }
        Ok(())
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(cx)?;
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        this.unanswered += buf.filled().len() - before;
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check(cx)?;
        this.unanswered = 0;
        Pin::new(&mut this.stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_cut_off() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut connection, _) = Bounded::new(listener).accept().await;
        let error = connection.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
