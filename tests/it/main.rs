//! The integration tests: Tieline against relays, real ones and a scripted one.
//!
//! `tests/install-relays.sh` has to have run once.
#![allow(clippy::unwrap_used, missing_docs)]

// Relays, clients and faults for the tests to use. No test stands here.
mod support;

// What is asked of every job, whichever relays it runs between.
mod sync_matrix;
// Relays that return or reconcile less at once than is asked for, or something else.
mod caps;
// Connections that end, or fall silent, at every point of a run.
mod interrupted;
// What an author has deleted or disowned (NIP-09, NIP-62) stays away.
mod deletions;
// Events that are not moved, or not again: refused, expired, superseded, vanished and the like.
mod careful;
// What is no relay, or one that cannot be used, and a state that cannot: what an operator is told.
mod bad_relays;
// The built program: what it prints and where, how it exits, what it never says.
mod cli;

// The daemon, as a process of its own: peers that fail, streams, signals, status.
mod daemon;
// The gateway: what passes through, sessions, limits, many clients at once.
mod gateway;
// What the daemon tells over HTTP, to machines and to people.
mod http;

// Discovery of git relays (GRASP-02), and notices.
mod grasp;

// Which module may use which: reads `src/`, runs nothing.
mod layering;
// What relays may answer, row by row of PROTOCOL.md's tables, through a whole job.
mod protocol;
// That `support` does what it says; a test of Tieline never belongs here.
mod support_works;
