//! The world Tieline is tested in. Nothing here uses Tieline's own code: what is checked is not
//! checked with itself.
// Each part is used by some test or other, not all of them at all times.
#![allow(dead_code)]

/// Runs the built program.
pub mod cli;
/// An independent client, to fill relays and to read them back.
pub mod client;
/// Signed events of every sort, and forged ones.
pub mod events;
/// The scripted relay.
pub mod model;
/// Stands between Tieline and a relay, and breaks the connection on demand.
pub mod proxy;
/// A relay of any sort, under one interface.
pub mod relay;

mod http;
