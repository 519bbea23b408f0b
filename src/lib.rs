//! Keeps Nostr relays in sync, exactly.
pub mod clock;
pub mod config;
pub mod job_spec;
pub mod nostr;
pub mod outcome;
pub mod reconcile;
pub mod relay;
pub mod state;
pub mod transfer;
