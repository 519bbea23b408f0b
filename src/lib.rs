//! Tieline keeps Nostr relays in sync, exactly: it works out per filter what each of two relays
//! lacks, and moves those events with REQ and EVENT, over WebSocket alone.
//!
//! # Layout
//!
//! Arrows point down only (`tests/it/layering.rs` holds them).
//!
//! Entry:
//! - [`cli`]: arguments, commands, exit codes, tables.
//! - [`app`]: puts the parts together, from settings to relays that can be used.
//!
//! Drivers, one task each:
//! - [`job`]: runs one job, pass after pass, until a pass finds nothing new.
//! - [`live`]: passes events on as they appear; what it may have lost becomes a gap.
//! - [`grasp`]: finds the relays that hold our git repositories, and what to ask them.
//! - [`notify`]: posts what was newly stored, so that a git server fetches data at once.
//! - [`gateway`]: NIP-77 in front of a relay that lacks it.
//! - [`http`]: metrics, health and status, for machines and for people.
//!
//! Edges, all other I/O:
//! - [`relay`]: one connection per relay; ask, publish, reconcile.
//! - [`state`]: what is remembered from run to run (SQLite), and the lock per job.
//! - [`clock`]: the clocks.
//! - [`metrics`]: what is counted, for Prometheus.
//!
//! Machines, pure:
//! - [`reconcile`]: which ids are on one side only.
//! - [`transfer`]: ids in, one outcome per id out.
//! - [`schedule`]: which job is to run when.
//! - [`health`]: how one relay is doing, and when it may be tried again.
//!
//! Vocabulary:
//! - [`config`]: the config file, as written and as meant.
//! - [`job_state`]: how a job is doing, in the words of `status`.
//! - [`job_spec`]: what a job is.
//! - [`outcome`]: one outcome per id, and the report that adds up.
//! - [`nostr`]: event, filter, relay message, reason, URL.

pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod gateway;
pub mod grasp;
pub mod health;
pub mod http;
pub mod job;
pub mod job_spec;
pub mod job_state;
pub mod live;
pub mod metrics;
pub mod nostr;
pub mod notify;
pub mod outcome;
pub mod reconcile;
pub mod relay;
pub mod schedule;
pub mod state;
pub mod transfer;
