//! Puts the parts together: from settings to relays and jobs that can run, and to a daemon.

mod daemon;
mod discovery;
mod gateway;
mod jobs;
mod notices;
mod presence;
mod relays;
mod watch;

pub use daemon::{Daemon, Signals};
pub use gateway::{BoundGateway, MadeFrom};
pub use relays::Relays;
