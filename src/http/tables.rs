//! The tables of the page: jobs, relays, parked ids.

use std::fmt::Write as _;

use super::words::{Text, bytes, moment, number, took};
use crate::health::Status;
use crate::job_state::JobState;
use crate::metrics::RelayHealth;
use crate::nostr::Timestamp;
use crate::state::{JobRow, ParkedCount};

/// How a job's state is to look: `good`, `busy`, `warn`, `bad` or `quiet`.
pub(super) fn mood(state: JobState) -> &'static str {
    match state {
        JobState::Converged => "good",
        JobState::Connected | JobState::Reconciling | JobState::Transferring => "busy",
        JobState::Partial | JobState::BackingOff => "warn",
        JobState::Blocked | JobState::Failed => "bad",
        JobState::Idle => "quiet",
    }
}

pub(super) fn jobs(jobs: &[JobRow], now: Timestamp) -> String {
    let mut rows = String::new();
    for job in jobs {
        let _ = writeln!(
            rows,
            r#"<tbody><tr>
<td>{state}</td><th scope="row">{peer}</th><td class="name">{filter}</td><td>{direction}</td>
<td>{attempt}</td><td>{success}</td><td>{whole}</td>
<td class="n">{down}</td><td class="n">{up}</td><td class="n">{bytes}</td><td>{next}</td>
</tr>{error}</tbody>"#,
            peer = Text(&job.peer),
            filter = Text(&job.filter),
            direction = direction(&job.direction),
            state = badge(job.state.as_str(), mood(job.state)),
            success = job.last_success.map_or_else(never, |at| moment(at, now)),
            whole = job.last_whole.map_or_else(never, |at| moment(at, now)),
            attempt = attempt(job, now),
            down = number(job.down),
            up = number(job.up),
            bytes = bytes(job.bytes),
            next = next(job, now),
            error = error(job),
        );
    }
    if jobs.is_empty() {
        rows.push_str(r#"<tbody><tr><td colspan="11">No job is configured, and none has run.</td></tr></tbody>"#);
    }
    format!(
        r#"<section>
<h2>Jobs</h2>
<div class="scroll"><table>
<thead><tr>
<th>State</th><th>Peer</th><th>Filter</th><th>Direction</th>
<th>Last run</th><th>Converged</th><th>Whole pass</th>
<th class="n">Down</th><th class="n">Up</th><th class="n">Traffic</th><th>Next run</th>
</tr></thead>
{rows}</table></div>
<p class="note">Down, up and traffic are those of the last run, or so far of the one under way. A whole pass compares all of the filter.</p>
</section>"#
    )
}

fn direction(direction: &str) -> String {
    let arrow = match direction {
        "pull" => "↓ ",
        "push" => "↑ ",
        "both" => "↕ ",
        _ => "",
    };
    format!("{arrow}{}", Text(direction))
}

fn never() -> String {
    "never".to_owned()
}

fn attempt(job: &JobRow, now: Timestamp) -> String {
    let Some(at) = job.last_attempt else { return never() };
    let took = if job.running { "under way".to_owned() } else { format!("took {}", took(job.duration_ms)) };
    format!("{} <small>{took}</small>", moment(at, now))
}

fn next(job: &JobRow, now: Timestamp) -> String {
    match job.next_run {
        Some(at) if at <= now => "due".to_owned(),
        Some(at) => moment(at, now),
        None => "–".to_owned(),
    }
}

fn error(job: &JobRow) -> String {
    let Some(error) = &job.last_error else { return String::new() };
    let times = if job.failures > 1 { format!("{} times in a row: ", number(job.failures)) } else { String::new() };
    format!(r#"<tr class="error"><td colspan="11"><div>{times}{}</div></td></tr>"#, Text(error))
}

pub(super) fn relays(relays: &[(String, RelayHealth)], jobs: &[JobRow]) -> String {
    let mut rows = String::new();
    for (name, RelayHealth { connected, status, failures }) in relays {
        let mood = match status {
            Status::Healthy => "good",
            Status::Degraded | Status::RateLimited => "warn",
            Status::Disconnected | Status::Dead => "bad",
        };
        let _ = writeln!(
            rows,
            r#"<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td class="n">{}</td><td class="n">{}</td></tr>"#,
            Text(name),
            badge(status.as_str(), mood),
            if *connected { "connected" } else { "not connected" },
            number((*failures).into()),
            jobs.iter().filter(|job| job.peer == *name).count(),
        );
    }
    if relays.is_empty() {
        rows.push_str(r#"<tr><td colspan="5">No relay was looked at yet.</td></tr>"#);
    }
    format!(
        r#"<section>
<h2>Relays</h2>
<div class="scroll"><table>
<thead><tr><th>Relay</th><th>Health</th><th>Now</th><th class="n">Failures in a row</th><th class="n">Jobs</th></tr></thead>
<tbody>{rows}</tbody></table></div>
<p class="note">Connections open when a job needs one: a healthy relay may well be not connected.</p>
</section>"#
    )
}

pub(super) fn parked(parked: &[ParkedCount]) -> String {
    if parked.is_empty() {
        return String::new();
    }
    let mut rows = String::new();
    let mut last = None;
    for ParkedCount { destination, reason, count } in parked {
        let name = if last == Some(destination) { "" } else { destination };
        last = Some(destination);
        let _ = writeln!(
            rows,
            r#"<tr><th scope="row">{}</th><td>{}</td><td class="n">{}</td></tr>"#,
            Text(name),
            Text(reason),
            number(*count)
        );
    }
    format!(
        r#"<section>
<h2>Parked</h2>
<div class="scroll"><table>
<thead><tr><th>Destination</th><th>Reason</th><th class="n">Ids</th></tr></thead>
<tbody>{rows}</tbody></table></div>
<p class="note">Found missing, and known not to be movable for now. Each is tried again when its time is over.</p>
</section>"#
    )
}

fn badge(word: &str, mood: &str) -> String {
    format!(r#"<span class="badge {mood}">{}</span>"#, Text(word))
}
