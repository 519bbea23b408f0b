//! The client to beat: it has every event in memory, and does nothing but send.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, SinkExt, StreamExt};
use tieline::clock;
use tokio_tungstenite::connect_async_with_config;
use tokio_tungstenite::tungstenite::Message;

/// Sends events with so many in flight, until each has its OK, and returns how long that took.
pub async fn send(url: &str, events: &[String], in_flight: usize) -> Result<Duration> {
    let frames: Vec<Message> = events.iter().map(|event| Message::text(format!(r#"["EVENT",{event}]"#))).collect();
    let started = clock::instant();
    let no_delay = true;
    let (mut socket, _) = connect_async_with_config(url, None, no_delay).await?;
    let mut frames = frames.into_iter();
    let mut under_way = 0;
    loop {
        for frame in frames.by_ref().take(in_flight - under_way) {
            socket.feed(frame).await?;
            under_way += 1;
        }
        if under_way == 0 {
            return Ok(clock::instant() - started);
        }
        socket.flush().await?;
        // Waits for one OK and takes the others that are there already.
        let mut next = Some(socket.next().await);
        while let Some(message) = next {
            let message = message.context("the relay closed the connection")??;
            if let Message::Text(text) = message {
                ensure!(text.starts_with(r#"["OK""#) && text.contains(",true,"), "not taken: {text}");
                under_way -= 1;
            }
            next = if under_way == 0 { None } else { socket.next().now_or_never() };
        }
    }
}
