//! Passes events on as they appear, from one relay to the other.
//!
//! A stream never retries. Whatever it may have lost (a connection, an OK, a place in a queue)
//! becomes a gap, and a gap is closed by a job: what is exact is the job's part, what is quick is
//! the stream's.

mod recent;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use self::recent::Seen;

use crate::clock;
use crate::job_spec::{JobKey, JobSpec, Side};
use crate::nostr::{Event, Prefix};
use crate::outcome::BySide;
use crate::relay::{Ack, Fault, Link, Publisher, Relay, RelayError, Stream, Streamed};
use crate::transfer::check::{Checked, Policy, Requests, Verdict};

/// Events awaiting their OK, above which the rest is left to a job: the destination is too slow
/// for a stream.
const MOST_UNDER_WAY: usize = 1000;

/// Waits before a stream is opened again: doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// What a live job tells.
#[derive(Clone, Debug)]
pub enum LiveReport {
    /// A stream listens: its relay can be reached, whatever was thought of it.
    Listening {
        /// The job.
        job: JobKey,
        /// The relay it listens to.
        side: Side,
    },
    /// Something may be missing since the job's last run: the next one finds it.
    Gap {
        /// The job.
        job: JobKey,
    },
    /// An event was passed on.
    Passed {
        /// The job.
        job: JobKey,
        /// The relay it came from.
        from: Side,
        /// Whether the other took it.
        taken: bool,
        /// From its arrival here to the other relay's OK.
        lag: Duration,
    },
}

/// A job's streams, one per side that it reads from.
pub struct Live {
    spec: Arc<JobSpec>,
    links: BySide<Link>,
    seen: Seen,
    reports: mpsc::UnboundedSender<LiveReport>,
}

impl Live {
    /// Over two relays whose connections are for streams alone, so that a bulk copy does not
    /// delay them. What is noted in `seen` is not passed on: the runs of the job have moved it.
    #[must_use]
    pub fn new(
        spec: Arc<JobSpec>,
        local: &Relay,
        peer: &Relay,
        seen: Seen,
        reports: mpsc::UnboundedSender<LiveReport>,
    ) -> Self {
        Self { spec, links: BySide { local: local.link(), peer: peer.link() }, seen, reports }
    }

    /// Runs until it is stopped.
    pub async fn run(self, stop: CancellationToken) {
        let sides = Side::BOTH.into_iter().filter(|side| self.spec.direction.moves_from(*side));
        let streams = sides.map(|side| self.follow(side));
        tokio::select! {
            _ = futures::future::join_all(streams) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Follows one side, over one connection after another.
    async fn follow(&self, from: Side) {
        let mut pause = FIRST_PAUSE;
        let mut told = false;
        loop {
            // A filter whose relative times exclude each other matches nothing, now and later.
            let Some(filter) = self.spec.filter_at(clock::now()) else { return };
            let stream = self.links[from].listen(filter);
            let error = self.pass_on(from, stream, &mut pause, &mut told).await;
            tracing::debug!(job = %self.spec, %error, "the stream ended");
            if !told {
                // The history need not wait for a stream that does not come.
                told = true;
                self.gap();
            }
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Passes on what one stream brings, until it ends.
    async fn pass_on(&self, from: Side, mut stream: Stream, pause: &mut Duration, told: &mut bool) -> RelayError {
        let mut outlet = self.outlet(from).await;
        loop {
            tokio::select! {
                streamed = stream.next() => match streamed {
                    Ok(Streamed::Listening) => {
                        *pause = FIRST_PAUSE;
                        *told = true;
                        self.tell(LiveReport::Listening { job: self.spec.key(), side: from });
                        // Before anything is heard, so that nothing lies between.
                        self.gap();
                    }
                    Ok(Streamed::Event(event)) => {
                        if self.seen.insert(event.id()) {
                            self.publish(*event, &mut outlet).await;
                        }
                    }
                    Err(error) => return error,
                },
                ack = outlet.publisher.next(), if !outlet.under_way.is_empty() => self.acked(&ack, &mut outlet),
            }
        }
    }

    async fn outlet(&self, from: Side) -> Outlet {
        let link = &self.links[from.other()];
        let relay = link.relay();
        let policy = Policy {
            now: clock::now(),
            exclude: self.spec.exclude.clone(),
            authenticated_as: relay.authenticates_as(),
            destination: relay.url().clone(),
            max_message: relay.info().await.max_message_length,
        };
        Outlet {
            from,
            policy,
            relay: relay.clone(),
            publisher: link.publisher(),
            under_way: HashMap::new(),
            away: None,
        }
    }

    async fn publish(&self, event: Event, outlet: &mut Outlet) {
        let arrived = clock::instant();
        outlet.policy.now = clock::now();
        if outlet.relay.is_connected() {
            outlet.away = None;
        }
        let is_away = outlet.away.as_mut().is_some_and(|away| !away.may_try(arrived));
        if is_away || outlet.under_way.len() >= MOST_UNDER_WAY {
            return self.gap();
        }
        // 40 µs: a stream of a thousand events a second leaves the core idle.
        let checked = outlet.policy.check(event, &Requests::default());
        if let Checked { id, verdict: Verdict::Publish { raw, .. } } = checked {
            outlet.under_way.insert(outlet.publisher.send(id, raw).await, arrived);
        }
    }

    fn acked(&self, ack: &Ack, outlet: &mut Outlet) {
        let Some(arrived) = outlet.under_way.remove(&ack.token) else { return };
        let lag = clock::instant().saturating_duration_since(arrived);
        let taken = matches!(ack.answer, Ok((true, _)));
        self.tell(LiveReport::Passed { job: self.spec.key(), from: outlet.from, taken, lag });
        if let Err(RelayError { fault: Fault::Unreachable(_), .. }) = &ack.answer {
            outlet.away.get_or_insert_with(|| Away::new(clock::instant()));
        }
        let lost = match &ack.answer {
            Ok((accepted, reason)) => !accepted && is_transient(reason.prefix),
            Err(_) => true,
        };
        if lost {
            self.gap();
        }
    }

    fn gap(&self) {
        self.tell(LiveReport::Gap { job: self.spec.key() });
    }

    fn tell(&self, report: LiveReport) {
        // Whoever listened has ended, and this job with it.
        let _ = self.reports.send(report);
    }
}

/// The other side of a stream: where its events go, and which await their OK there.
struct Outlet {
    from: Side,
    policy: Policy,
    relay: Relay,
    publisher: Publisher,
    under_way: HashMap<u64, Instant>,
    away: Option<Away>,
}

/// A destination that could not be reached: publishing dials, and is not to do so for each event.
struct Away {
    until: Instant,
    pause: Duration,
}

impl Away {
    fn new(now: Instant) -> Self {
        Self { until: now + FIRST_PAUSE, pause: FIRST_PAUSE }
    }

    /// Whether one event may find out now; the next one waits longer.
    fn may_try(&mut self, now: Instant) -> bool {
        let may = now >= self.until;
        if may {
            self.pause = (self.pause * 2).min(LAST_PAUSE);
            self.until = now + self.pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        }
        may
    }
}

/// Whether a refusal may be another one, or none, the next time.
const fn is_transient(prefix: Prefix) -> bool {
    matches!(prefix, Prefix::Closed | Prefix::Error | Prefix::RateLimited | Prefix::Unknown | Prefix::Unsupported)
}
