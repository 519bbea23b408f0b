//! When a job runs, as the file says it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::file::{JobOptions, Schedule as Written, ScheduleParts};
use super::finding::{Findings, Path};

/// When a job runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What starts a run. Default every 5 minutes: equal sets cost one exchange.
    pub when: When,
    /// How far before the last complete run a side without negentropy is listed. Default 1 day.
    pub overlap: Duration,
}

/// What starts a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// The time since the last one started; never 0.
    Every(Duration),
    /// The clock, in UTC.
    Cron(Cron),
    /// The command line alone.
    Manual,
}

/// The text of a cron expression. It has five fields of the right letters; that their values
/// are in range is for whoever evaluates it to find out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron(String);

/// A text that is no cron expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected five fields: minute, hour, day of month, month, day of week")]
pub struct CronError;

impl FromStr for Cron {
    type Err = CronError;

    fn from_str(text: &str) -> Result<Self, CronError> {
        let is_field = |field: &str| field.bytes().all(|b| b.is_ascii_alphanumeric() || b"*/,-#?".contains(&b));
        let fields: Vec<_> = text.split_whitespace().collect();
        (fields.len() == 5 && fields.iter().copied().all(is_field)).then(|| Self(fields.join(" "))).ok_or(CronError)
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What one place of the file says about when a job runs.
#[derive(Clone, Default)]
pub(super) struct ScheduleOptions {
    when: Option<When>,
    overlap: Option<Duration>,
}

impl ScheduleOptions {
    /// Reads `interval_seconds` and `schedule` at one place.
    pub fn read(written: &JobOptions, at: &Path, findings: &mut Findings<'_>) -> Self {
        let at_schedule = at.key("schedule");
        let parts = match &written.schedule {
            None => &ScheduleParts::default(),
            Some(Written::Word(_)) => &ScheduleParts { manual: Some(true), ..ScheduleParts::default() },
            Some(Written::Parts(parts)) => parts,
        };
        let given = [
            written.interval_seconds.map(|seconds| Some(When::Every(Duration::from_secs(seconds.get())))),
            parts.every.as_ref().map(|text| findings.duration(&at_schedule.key("every"), text).map(When::Every)),
            parts.cron.as_ref().map(|text| findings.parse(&at_schedule.key("cron"), text).map(When::Cron)),
            (parts.manual == Some(true)).then_some(Some(When::Manual)),
        ];
        let mut given = given.into_iter().flatten();
        let when = given.next().flatten();
        if given.next().is_some() {
            findings.error(&at_schedule, "expected only one of interval_seconds, every, cron and manual");
        }
        let overlap = parts.overlap.as_ref().and_then(|text| findings.duration(&at_schedule.key("overlap"), text));
        Self { when, overlap }
    }

    /// These, and for what they leave open the ones below.
    pub fn over(self, below: &Self) -> Self {
        Self { when: self.when.or_else(|| below.when.clone()), overlap: self.overlap.or(below.overlap) }
    }

    /// With the defaults for what is still open.
    pub fn settings(self) -> Schedule {
        Schedule {
            when: self.when.unwrap_or(When::Every(Duration::from_secs(300))),
            overlap: self.overlap.unwrap_or(Duration::from_secs(86_400)),
        }
    }
}
