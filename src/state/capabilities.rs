//! What relays were found to be able to do, and until when that is believed.

use rusqlite::{Connection, OptionalExtension, params};
use serde::Serialize;

use super::schema::{from_int, to_int};
use crate::nostr::Timestamp;

/// Something learnt of a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// What was found, such as `yes`, `no` or `silent`.
    pub verdict: String,
    /// How often in a row.
    pub strikes: u32,
    /// When it is asked again.
    pub until: Timestamp,
}

pub(super) fn read(db: &Connection, relay: &str, what: &str, now: Timestamp) -> rusqlite::Result<Option<Capability>> {
    db.prepare_cached("SELECT verdict, strikes, until FROM capabilities WHERE relay = ?1 AND what = ?2 AND until > ?3")?
        .query_row(params![relay, what, to_int(now)], |row| {
            Ok(Capability { verdict: row.get(0)?, strikes: row.get(1)?, until: from_int(row.get(2)?) })
        })
        .optional()
}

pub(super) fn write(db: &Connection, relay: &str, what: &str, capability: &Capability) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT OR REPLACE INTO capabilities (relay, what, verdict, strikes, until) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![relay, what, capability.verdict, capability.strikes, to_int(capability.until)])?;
    Ok(())
}

pub(super) fn prune(db: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    db.execute("DELETE FROM capabilities WHERE until <= ?1", [to_int(now)])?;
    Ok(())
}
