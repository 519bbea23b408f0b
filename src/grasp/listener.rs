//! Reads the local relay: its history page by page, and what it accepts from then on. What it
//! heard goes on in order, and nothing falls between the two.

use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::mpsc;

use super::index::{ANNOUNCEMENT, ROOTS};
use crate::clock;
use crate::nostr::{Event, Filter, Timestamp, kind};
use crate::reconcile::{Head, Page, PageSize, Pager, PagerError, Question};
use crate::relay::{Link, RelayError, Stream, Streamed};

/// Waits before the local relay is tried again: doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// An absence of so many seconds is made up for; after a longer one all is read again.
const QUICK: u64 = 15 * 60;
/// How far before an absence what was missed is looked for: `created_at` is not the time of arrival.
const OVERLAP: u64 = 24 * 3600;
/// All is read again at least this often, in seconds: what is back-dated shows up in no `since`.
const WHOLE_LEAST: u64 = 23 * 3600;
const WHOLE_SPREAD: u64 = 2 * 3600;

/// What was heard.
#[derive(Debug)]
pub(super) enum Heard {
    /// All that the relay holds follows, as [`Self::Past`], mixed with news.
    Begin,
    /// An event that it holds.
    Past(Box<Event>),
    /// That was all.
    Complete,
    /// An event that it has accepted since it was last listened to, or is accepting now.
    News(Box<Event>),
}

#[derive(Debug, thiserror::Error)]
enum ListenError {
    #[error(transparent)]
    Relay(#[from] RelayError),
    #[error("its history cannot be listed: {0}")]
    Pager(#[from] PagerError),
}

pub(super) struct Listener {
    link: Link,
    heard: mpsc::Sender<Heard>,
    /// Up to when nothing was missed.
    complete_until: Option<Timestamp>,
    whole_due: Timestamp,
}

impl Listener {
    pub(super) const fn new(link: Link, heard: mpsc::Sender<Heard>) -> Self {
        Self { link, heard, complete_until: None, whole_due: 0 }
    }

    /// Listens, over one connection after another, for ever.
    pub(super) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let stream = filter(true, None).map(|filter| self.link.listen(vec![filter]));
            // The kinds are given: there is a filter.
            let Some(stream) = stream else { return };
            let began = clock::instant();
            if let Err(error) = self.follow(stream).await {
                tracing::debug!(%error, "discovery no longer hears the local relay");
            }
            if began.elapsed() > LAST_PAUSE {
                pause = FIRST_PAUSE;
            }
            tokio::time::sleep(clock::jittered(pause)).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Follows one stream to its end; what it missed before is made up for first.
    async fn follow(&mut self, mut stream: Stream) -> Result<(), ListenError> {
        while let Streamed::Event(event) = stream.next().await? {
            self.tell(Heard::News(event)).await;
        }
        // From here on the stream misses nothing.
        loop {
            let now = clock::now();
            let since = missed_since(self.complete_until, now, self.whole_due);
            self.catch_up(&mut stream, since).await?;
            self.complete_until = Some(clock::now());
            if since.is_none() {
                self.whole_due = clock::now() + WHOLE_LEAST + fastrand::u64(0..=WHOLE_SPREAD);
                tracing::debug!("discovery has read all that the local relay holds");
            }
            let mut look = tokio::time::interval(Duration::from_secs(1));
            while clock::now() < self.whole_due {
                tokio::select! {
                    streamed = stream.next() => if let Streamed::Event(event) = streamed? {
                        self.tell(Heard::News(event)).await;
                    },
                    _ = look.tick() => {}
                }
                self.complete_until = Some(clock::now());
            }
        }
    }

    /// Lists what the relay holds, from `since` on or all of it, while the stream goes on.
    async fn catch_up(&self, stream: &mut Stream, since: Option<Timestamp>) -> Result<(), ListenError> {
        let history = self.history(since);
        tokio::pin!(history);
        loop {
            tokio::select! {
                end = &mut history => return end,
                streamed = stream.next() => if let Streamed::Event(event) = streamed? {
                    self.tell(Heard::News(event)).await;
                },
            }
        }
    }

    async fn history(&self, since: Option<Timestamp>) -> Result<(), ListenError> {
        let whole = since.is_none();
        // What was deleted is not there to be listed: deletions matter to those who heard of it before.
        let Some(filter) = filter(!whole, since) else { return Ok(()) };
        if whole {
            self.tell(Heard::Begin).await;
        }
        let limit = self.link.relay().info().await.page_limit();
        let mut pager = Pager::new(filter, Timestamp::MAX, PageSize { limit, largest: 0 });
        while let Some(Question::Page { filter, limit }) = pager.next_question() {
            let last = filter.until().unwrap_or(Timestamp::MAX);
            let mut events = Vec::new();
            let take = |event| {
                if let Ok(event) = event {
                    events.push(event);
                }
            };
            let (received, hint) = self.link.stored(self.link.as_asked(filter).await?, limit, take).await?;
            events.retain(|event: &Event| event.created_at() <= last);
            let heads = events.iter().map(|event| Head { created_at: event.created_at(), id: event.id() }).collect();
            let new: HashSet<_> = pager.take(Page { heads, received, hint })?.into_iter().map(|head| head.id).collect();
            for event in events.into_iter().filter(|event| new.contains(&event.id())) {
                let event = Box::new(event);
                self.tell(if whole { Heard::Past(event) } else { Heard::News(event) }).await;
            }
        }
        for dense in pager.take_dense() {
            tracing::warn!(
                second = dense.second,
                cap = dense.cap,
                "the local relay holds more in one second than it lists at once: discovery may miss repositories"
            );
        }
        if whole {
            self.tell(Heard::Complete).await;
        }
        Ok(())
    }

    async fn tell(&self, heard: Heard) {
        // Whoever listens lives as long as this does.
        let _ = self.heard.send(heard).await;
    }
}

/// From when on events may have been missed; `None` when all is to be read again.
fn missed_since(complete_until: Option<Timestamp>, now: Timestamp, whole_due: Timestamp) -> Option<Timestamp> {
    let until = complete_until.filter(|until| now.saturating_sub(*until) <= QUICK && now < whole_due)?;
    Some(until.saturating_sub(OVERLAP))
}

fn filter(with_deletions: bool, since: Option<Timestamp>) -> Option<Filter> {
    let deletions = [kind::DELETION, kind::VANISH].into_iter().filter(|_| with_deletions);
    Filter::new().narrow_kinds([ANNOUNCEMENT].into_iter().chain(ROOTS).chain(deletions))?.narrow_time(since, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_absence_is_made_up_for_and_a_long_one_begins_anew() {
        let (now, due) = (1_700_000_000, 1_700_050_000);
        assert_eq!(missed_since(None, now, due), None, "after a start");
        assert_eq!(missed_since(Some(now - 10), now, due), Some(now - 10 - OVERLAP));
        assert_eq!(missed_since(Some(now - QUICK), now, due), Some(now - QUICK - OVERLAP));
        assert_eq!(missed_since(Some(now - 20 * 60), now, due), None);
        assert_eq!(missed_since(Some(now - 10), due, due), None, "once a day");
        assert_eq!(missed_since(Some(now + 50), now, due), Some(now + 50 - OVERLAP), "a clock that was set back");
    }
}
