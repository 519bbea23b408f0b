//! The world Tieline is tested in. Nothing here but `run` uses Tieline's own code: what is checked
//! is not checked with itself.
//!
//! ```ignore
//! let local = TestRelay::in_process().await;
//! let peer = ModelRelay::start(Quirks { page_cap: Some(100), neg: Neg::Silence, ..Quirks::default() }).await;
//! let proxy = Proxy::start(peer.url()).await;
//! proxy.set_fault(Fault::CutOnce(7));
//! peer.fill(&Author::new(1).notes(1000, EPOCH));
//! let output = Cli::new().run(&["sync", local.url(), proxy.url(), "--filter", "{}", "--json"]).await;
//! assert_eq!(output.code, 0, "{output:?}");
//! assert_eq!(local.ids(&json!({})).await, peer.ids(&json!({})));
//! assert!(peer.offered().is_empty());
//! ```
// Each part is used by some test or other, not all of them at all times.
#![allow(dead_code)]

/// Runs the built program.
pub mod cli;
/// An independent client, to fill relays and to read them back.
pub mod client;
/// Signed events of every sort, and forged ones.
pub mod events;
/// What is on the disk.
pub mod files;
/// Plain HTTP: to ask for a page, and to tell it from WebSocket.
pub mod http;
/// The scripted relay.
pub mod model;
/// Stands between Tieline and a relay, and breaks the connection on demand.
pub mod proxy;
/// A relay of any sort, under one interface.
pub mod relay;
/// Runs a job through the library.
pub mod run;
