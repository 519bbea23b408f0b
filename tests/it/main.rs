//! The integration tests: Tieline against relays, real ones and a scripted one.
//!
//! `tests/install-relays.sh` has to have run once.
#![allow(clippy::unwrap_used, missing_docs)]

// Relays, clients and faults for the tests to use. No test stands here.
mod support;

// Which module may use which: reads `src/`, runs nothing.
mod layering;
// That `support` does what it says; a test of Tieline never belongs here.
mod support_works;
