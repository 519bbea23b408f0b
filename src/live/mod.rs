//! Passes events on as they appear, from one relay to the other.
//!
//! One task reads from a relay for all jobs, however few subscriptions it allows, and one writes
//! to it. A stream never retries. Whatever it may have lost (a connection, an OK, a place in a
//! queue) becomes a gap, and a gap is closed by a job: what is exact is the job's part, what is
//! quick is the stream's.

mod outlet;
mod packing;
mod recent;
mod reports;
mod source;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub use self::recent::Seen;
pub use self::reports::{LiveReports, Reporter, reports};

use self::outlet::Outlet;
use self::source::{Route, Source};
use crate::job_spec::{JobKey, JobSpec, Side};
use crate::nostr::RelayUrl;
use crate::outcome::{Outcome, Stored};
use crate::relay::Relay;

/// Subscriptions on a connection that is for streams alone, where the relay sets no lower limit:
/// strfry allows 200 and khatru any number; 70 is what GRASP relays are known to bear.
pub const STREAMS: usize = 70;

/// Waits before a stream is opened again: doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// What streams tell.
#[derive(Clone, Debug)]
pub enum LiveReport {
    /// A stream listens: its relay can be reached, whatever was thought of it.
    Listening {
        /// The relay.
        relay: RelayUrl,
    },
    /// Something may be missing since the job's last run: the next one finds it.
    Gap {
        /// The job.
        job: JobKey,
    },
    /// An event was passed on.
    Passed {
        /// A job that it belongs to; others between the same relays may want it too.
        job: JobKey,
        /// The relay it came from.
        from: Side,
        /// What became of it at the other.
        outcome: Outcome,
        /// What is told of it, if the local relay has newly stored it.
        stored: Option<Box<Stored>>,
        /// From its arrival here to the other relay's OK.
        lag: Duration,
    },
}

/// The streams of all live jobs.
pub struct Streams {
    sources: HashMap<RelayUrl, Source>,
    outlets: HashMap<RelayUrl, Outlet>,
    reports: Reporter,
}

impl Streams {
    /// None yet.
    #[must_use]
    pub fn new(reports: Reporter) -> Self {
        Self { sources: HashMap::new(), outlets: HashMap::new(), reports }
    }

    /// Goes over to the streams of these jobs. `relay` finds a relay whose connection is for
    /// streams alone, so that a bulk copy does not delay them. What stays is not disturbed.
    pub fn set<'r>(&mut self, jobs: &[(JobKey, Arc<JobSpec>)], relay: impl Fn(&RelayUrl) -> Option<&'r Relay>) {
        let urls = jobs.iter().flat_map(|(_, spec)| Side::BOTH.map(|side| spec.url(side)));
        let relays: HashMap<&RelayUrl, &Relay> = urls.filter_map(|url| Some((url, relay(url)?))).collect();
        // A relay whose settings have changed is another one, over another connection.
        self.sources.retain(|url, source| relays.get(url).is_some_and(|relay| relay.is_same(source.relay())));
        self.outlets.retain(|url, outlet| relays.get(url).is_some_and(|relay| relay.is_same(outlet.relay())));
        for (url, relay) in &relays {
            let new = || Outlet::spawn((*relay).clone(), Seen::default(), self.reports.clone());
            self.outlets.entry((*url).clone()).or_insert_with(new);
        }
        let mut routes: HashMap<&RelayUrl, Vec<Route>> = HashMap::new();
        for (job, spec) in jobs {
            for from in Side::BOTH.into_iter().filter(|side| spec.direction.moves_from(*side)) {
                let Some(to) = self.outlets.get(spec.url(from.other())) else { continue };
                let route = Route::new(*job, spec.clone(), from, to.clone());
                routes.entry(spec.url(from)).or_default().push(route);
            }
        }
        self.sources.retain(|url, _| routes.contains_key(url));
        for (url, routes) in routes {
            match (self.sources.get(url), relays.get(url), self.outlets.get(url)) {
                (Some(source), ..) => source.set(routes),
                (None, Some(relay), Some(outlet)) => {
                    let source = Source::spawn((*relay).clone(), outlet.seen().clone(), routes, self.reports.clone());
                    self.sources.insert(url.clone(), source);
                }
                (None, ..) => {}
            }
        }
    }

    /// What a relay of a live job got lately: a run that moves events notes them there, or the
    /// streams would take them for news, and send them back to where they came from.
    #[must_use]
    pub fn seen(&self, relay: &RelayUrl) -> Option<Seen> {
        self.outlets.get(relay).map(|outlet| outlet.seen().clone())
    }
}
