//! Keeps Nostr relays in sync, exactly.
pub mod config;
pub mod job_spec;
pub mod nostr;
pub mod outcome;
pub mod reconcile;
