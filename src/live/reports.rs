//! What streams tell, on its way to whoever owns them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use super::LiveReport;
use crate::job_spec::JobKey;

/// A queue in which each job has one gap at the most: one more would say nothing new, and a relay
/// that sends more than another takes makes thousands a second, for each job.
#[must_use]
pub fn reports() -> (Reporter, LiveReports) {
    let (queue, inbox) = mpsc::unbounded_channel();
    let gaps = Gaps::default();
    (Reporter { queue, gaps: gaps.clone() }, LiveReports { inbox, gaps })
}

/// The jobs with a gap in the queue.
#[derive(Clone, Debug, Default)]
struct Gaps(Arc<Mutex<HashSet<JobKey>>>);

impl Gaps {
    fn lock(&self) -> MutexGuard<'_, HashSet<JobKey>> {
        // Held for one look, never across an await; a panic under it would be that look's own.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Reporter {
    queue: mpsc::UnboundedSender<LiveReport>,
    gaps: Gaps,
}

impl Reporter {
    pub(super) fn tell(&self, report: LiveReport) {
        if let LiveReport::Gap { job } = &report
            && !self.gaps.lock().insert(*job)
        {
            return;
        }
        // Whoever listened has ended, and the streams with it.
        let _ = self.queue.send(report);
    }
}

/// What streams told.
#[derive(Debug)]
pub struct LiveReports {
    inbox: mpsc::UnboundedReceiver<LiveReport>,
    gaps: Gaps,
}

impl LiveReports {
    /// The next report; `None` when there are no streams any more. Cancel safe.
    pub async fn recv(&mut self) -> Option<LiveReport> {
        let report = self.inbox.recv().await?;
        Some(self.taken(report))
    }

    /// The next report, if it is there already.
    pub fn next_now(&mut self) -> Option<LiveReport> {
        let report = self.inbox.try_recv().ok()?;
        Some(self.taken(report))
    }

    fn taken(&self, report: LiveReport) -> LiveReport {
        if let LiveReport::Gap { job } = &report {
            // Before it is acted upon: what is missed from here on is another gap.
            self.gaps.lock().remove(job);
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_has_one_gap_in_the_queue_and_may_have_another_after_it() {
        let key = |letter: &str| -> JobKey { letter.repeat(32).parse().unwrap() };
        let (reporter, mut reports) = reports();
        let gap = |job| reporter.tell(LiveReport::Gap { job });
        (0..10_000).for_each(|_| gap(key("a")));
        gap(key("b"));
        assert_eq!(reports.inbox.len(), 2);
        let mut next = async || match reports.recv().await {
            Some(LiveReport::Gap { job }) => job,
            other => panic!("{other:?}"),
        };
        assert_eq!(next().await, key("a"));
        gap(key("a"));
        assert_eq!(next().await, key("b"));
        assert_eq!(next().await, key("a"));
    }
}
