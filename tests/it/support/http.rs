//! Tells a WebSocket handshake from plain HTTP on one port, without reading anything.

use std::time::Duration;

use tokio::net::TcpStream;

/// Whether the client asks for a WebSocket. The request stays unread.
pub async fn wants_websocket(stream: &TcpStream) -> bool {
    let mut head = [0; 4096];
    while let Ok(read @ 1..) = stream.peek(&mut head).await {
        let text = String::from_utf8_lossy(&head[..read]).to_lowercase();
        if text.contains("\r\n\r\n") || read == head.len() {
            return text.contains("upgrade: websocket");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}
