//! The ids that are known not to be movable to a destination for now.

use std::collections::HashSet;

use rusqlite::{Connection, TransactionBehavior, params};
use serde::Serialize;

use super::schema::{from_int, to_int};
use crate::job_spec::JobKey;
use crate::nostr::{EventId, Prefix, RelayUrl, Timestamp};
use crate::outcome::{ParkReason, Skip};

/// A parked id, as `list_parked` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParkedRow {
    /// The relay it cannot be moved to.
    pub dst: String,
    /// The id, in hex.
    pub id: String,
    /// Where that holds: empty for everywhere, else a source relay or a job.
    pub scope: String,
    /// Why, such as `refused:blocked`.
    pub reason: String,
    /// When it is tried again.
    pub until: Timestamp,
}

/// How many ids are parked at one destination for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParkedCount {
    /// The relay they cannot be moved to.
    pub destination: String,
    /// Why, such as `refused:blocked`.
    pub reason: String,
    /// How many.
    pub count: u64,
}

/// Where a reason holds: a fact learnt of one source must not hide the event at another, nor
/// one job's rule from another job.
#[must_use]
pub fn scope(reason: ParkReason, source: &RelayUrl, job: JobKey) -> String {
    match reason {
        // Another source may have it, and have it whole.
        ParkReason::Vanished | ParkReason::Skipped(Skip::Invalid) => source.to_string(),
        ParkReason::Skipped(Skip::Excluded) => job.to_string(),
        // What the destination said, or what the event itself says.
        ParkReason::Early
        | ParkReason::Hidden(_)
        | ParkReason::NotServed
        | ParkReason::Refused(_)
        | ParkReason::Skipped(
            Skip::Deleted | Skip::Ephemeral | Skip::Expired | Skip::Protected | Skip::TooLarge | Skip::Vanish,
        ) => String::new(),
    }
}

pub(super) fn lookup(
    db: &mut Connection,
    dst: &str,
    scopes: &[String],
    mut ids: Vec<EventId>,
    now: Timestamp,
) -> rusqlite::Result<HashSet<EventId>> {
    let mut parked = HashSet::new();
    // One transaction, because each takes and leaves the locks that other processes see.
    let db = db.transaction()?;
    if count(&db, dst)? == 0 {
        return Ok(parked);
    }
    // In the order of the table, neighbours are read from one page.
    ids.sort_unstable();
    let mut facts = db.prepare_cached(LOOKUP)?;
    for id in ids {
        let mut rows = facts.query(params![dst, id.as_bytes(), to_int(now)])?;
        while let Some(row) = rows.next()? {
            let scope = row.get_ref(0)?.as_str()?;
            if scope.is_empty() || scopes.iter().any(|wanted| wanted == scope) {
                parked.insert(id);
            }
        }
    }
    Ok(parked)
}

pub(super) fn park(
    db: &mut Connection,
    dst: &str,
    scope: &str,
    facts: &[(EventId, ParkReason)],
    now: Timestamp,
    max_per_dst: u64,
) -> rusqlite::Result<()> {
    let db = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut insert = db.prepare_cached(
            "INSERT INTO parked (dst, id, scope, reason, until) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO UPDATE SET reason = excluded.reason, until = excluded.until",
        )?;
        for (id, reason) in facts {
            let until = to_int(now.saturating_add(reason.holds_for()));
            insert.execute(params![dst, id.as_bytes(), scope, reason.label(), until])?;
        }
    }
    let excess = count(&db, dst)?.saturating_sub(max_per_dst);
    if excess > 0 {
        db.execute(
            "DELETE FROM parked WHERE (dst, id, scope) IN
               (SELECT dst, id, scope FROM parked WHERE dst = ?1 ORDER BY until LIMIT ?2)",
            params![dst, to_int(excess)],
        )?;
    }
    db.commit()
}

pub(super) fn forget(db: &Connection, dst: Option<&str>) -> rusqlite::Result<u64> {
    let forgotten = db.execute("DELETE FROM parked WHERE ?1 IS NULL OR dst = ?1", [dst])?;
    Ok(forgotten as u64)
}

/// Forgets what followed from events that the destination held.
pub(super) fn forget_held(db: &Connection, dst: &str) -> rusqlite::Result<u64> {
    let reasons = [Prefix::Duplicate, Prefix::Replaced].map(|prefix| ParkReason::Refused(prefix).label());
    let forgotten =
        db.execute("DELETE FROM parked WHERE dst = ?1 AND reason IN (?2, ?3)", params![dst, reasons[0], reasons[1]])?;
    Ok(forgotten as u64)
}

pub(super) fn list(db: &Connection, dst: Option<&str>, now: Timestamp, limit: u32) -> rusqlite::Result<Vec<ParkedRow>> {
    let mut rows = db.prepare_cached(
        "SELECT dst, id, scope, reason, until FROM parked
         WHERE (?1 IS NULL OR dst = ?1) AND until > ?2 ORDER BY until DESC, dst, id, scope LIMIT ?3",
    )?;
    rows.query_map(params![dst, to_int(now), limit], |row| {
        Ok(ParkedRow {
            dst: row.get(0)?,
            id: EventId::new(row.get(1)?).to_string(),
            scope: row.get(2)?,
            reason: row.get(3)?,
            until: from_int(row.get(4)?),
        })
    })?
    .collect()
}

pub(super) fn counts(db: &Connection) -> rusqlite::Result<Vec<ParkedCount>> {
    let mut rows =
        db.prepare_cached("SELECT dst, reason, ids FROM parked_counts WHERE ids > 0 ORDER BY dst, ids DESC, reason")?;
    rows.query_map([], |row| {
        Ok(ParkedCount { destination: row.get(0)?, reason: row.get(1)?, count: from_int(row.get(2)?) })
    })?
    .collect()
}

pub(super) fn prune(db: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    // By destination, because the index on `until` is.
    db.execute("DELETE FROM parked WHERE dst IN (SELECT dst FROM parked_counts) AND until <= ?1", [to_int(now)])?;
    db.execute("DELETE FROM parked_counts WHERE ids = 0", [])?;
    Ok(())
}

fn count(db: &Connection, dst: &str) -> rusqlite::Result<u64> {
    db.prepare_cached("SELECT coalesce(sum(ids), 0) FROM parked_counts WHERE dst = ?1")?
        .query_row([dst], |row| row.get(0).map(from_int))
}

/// The plus keeps SQLite from walking everything that `until` selects instead of finding the id.
const LOOKUP: &str = "SELECT scope FROM parked WHERE dst = ?1 AND id = ?2 AND +until > ?3";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_by_the_primary_key() {
        let dir = tempfile::tempdir().unwrap();
        let db = crate::state::schema::open(dir.path()).unwrap();
        let plan: String =
            db.query_row(&format!("EXPLAIN QUERY PLAN {LOOKUP}"), params!["", "", 0], |row| row.get("detail")).unwrap();
        assert_eq!(plan, "SEARCH parked USING PRIMARY KEY (dst=? AND id=?)");
    }
}
