//! The strategies against relays of every kind, and a plain set difference.

mod exchange;
mod hostile;
mod listing;
pub(super) mod model;
mod refusals;
