//! The gateway: where it listens, whom it believes, what its clients may use.

use std::net::SocketAddr;
use std::time::Duration;

use super::file;
use super::finding::{Findings, Path};
use super::network::Network;
use super::services::listen;

/// A NIP-77 responder in front of a local relay that has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewaySettings {
    /// Default 127.0.0.1:7780.
    pub listen: SocketAddr,
    /// Proxies whose word on who asks is passed on.
    pub trusted_proxies: Vec<Network>,
    /// What clients may use.
    pub limits: GatewayLimits,
}

/// What the gateway's clients may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayLimits {
    /// Clients at once.
    pub connections: usize,
    /// Bytes of one message from a client.
    pub message_bytes: usize,
    /// Whether a filter may match every event.
    pub allow_unrestricted: bool,
    /// Matching events per filter.
    pub events_per_filter: usize,
    /// Negentropy sessions of one connection.
    pub sessions_per_connection: usize,
    /// Negentropy sessions in all.
    pub sessions: usize,
    /// Listings of the local relay under way.
    pub listings: usize,
    /// Bytes of one answer, before hex.
    pub frame_bytes: usize,
    /// Bytes of all inventories.
    pub memory_bytes: usize,
    /// Negentropy messages per second of one connection.
    pub messages_per_second: u32,
    /// A session without a message ends after this.
    pub idle: Duration,
    /// A session ends after this.
    pub total: Duration,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            // Each costs two sockets and some 50 kB.
            connections: 1000,
            // The answers of a responder without a frame limit, in hex, have half a million ids
            // in them less than this; events of a megabyte exist.
            message_bytes: 2_500_000,
            allow_unrestricted: false,
            // What strfry's `maxSyncEvents` permits.
            events_per_filter: 1_000_000,
            sessions_per_connection: 8,
            sessions: 64,
            listings: 4,
            frame_bytes: 500_000,
            // Six of the largest inventories, at 40 bytes an event.
            memory_bytes: 256 << 20,
            // A comparison takes 5 to 30 exchanges, however large it is.
            messages_per_second: 100,
            // As khatru.
            idle: Duration::from_secs(120),
            total: Duration::from_secs(1800),
        }
    }
}

impl GatewaySettings {
    pub(super) fn read(written: &file::Gateway, at: &Path, findings: &mut Findings<'_>) -> Option<Self> {
        let listen = listen(written.listen.as_deref().unwrap_or("127.0.0.1:7780"), at, findings);
        let at_proxies = at.key("trusted_proxies");
        let proxies = written.trusted_proxies.iter().flatten().enumerate();
        let trusted_proxies =
            proxies.filter_map(|(index, text)| findings.parse(&at_proxies.index(index), text)).collect();
        let limits = written.limits.as_ref().map(|limits| GatewayLimits::read(limits, &at.key("limits"), findings));
        Some(Self { listen: listen?, trusted_proxies, limits: limits.unwrap_or_default() })
    }
}

impl GatewayLimits {
    fn read(written: &file::GatewayLimits, at: &Path, findings: &mut Findings<'_>) -> Self {
        let usual = Self::default();
        let mut span = |key: &str, text: &Option<String>| findings.duration(&at.key(key), text.as_ref()?);
        let limits = Self {
            connections: written.connections.map_or(usual.connections, Into::into),
            message_bytes: written.message_bytes.map_or(usual.message_bytes, Into::into),
            allow_unrestricted: written.allow_unrestricted.unwrap_or(usual.allow_unrestricted),
            events_per_filter: written.events_per_filter.map_or(usual.events_per_filter, Into::into),
            sessions_per_connection: written.sessions_per_connection.map_or(usual.sessions_per_connection, Into::into),
            sessions: written.sessions.map_or(usual.sessions, Into::into),
            listings: written.listings.map_or(usual.listings, Into::into),
            frame_bytes: written.frame_bytes.map_or(usual.frame_bytes, Into::into),
            memory_bytes: written.memory_bytes.map_or(usual.memory_bytes, Into::into),
            messages_per_second: written.messages_per_second.map_or(usual.messages_per_second, Into::into),
            idle: span("idle", &written.idle).unwrap_or(usual.idle),
            total: span("total", &written.total).unwrap_or(usual.total),
        };
        // The negentropy crate takes no smaller frames than 4096 bytes, and a client needs as many
        // to say anything.
        // Memory is given out in blocks of 1024 events.
        for (key, bytes, least) in [
            ("frame_bytes", limits.frame_bytes, 4096),
            ("message_bytes", limits.message_bytes, 4096),
            ("memory_bytes", limits.memory_bytes, 1_000_000),
        ] {
            if bytes < least {
                findings.error(&at.key(key), format!("expected at least {least}"));
            }
        }
        limits
    }
}
