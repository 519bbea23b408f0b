//! Tells a WebSocket handshake from plain HTTP on one port, without reading anything; and asks for
//! a page.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
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

/// What is answered to a GET at this port: head and body.
pub async fn get(port: u16, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}
