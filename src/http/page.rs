//! The page for people, as a function of what is known.

use std::collections::BTreeMap;

use super::history::{History, first_hour};
use super::words::{Text, date, moment, number};
use super::{plot, tables};
use crate::metrics::RelayHealth;
use crate::nostr::Timestamp;
use crate::state::{HourRow, RUNS_KEPT, StatusView};

/// Seconds until a browser asks again.
const REFRESH: u32 = 30;

/// All that the page shows.
pub(super) struct Page {
    pub(super) now: Timestamp,
    pub(super) relays: Vec<(String, RelayHealth)>,
    pub(super) history: History,
    /// Or why it could not be read.
    pub(super) remembered: Result<Remembered, String>,
}

/// What the state knows.
#[derive(Default)]
pub(super) struct Remembered {
    pub(super) status: StatusView,
    pub(super) hours: Vec<HourRow>,
}

impl Page {
    pub(super) fn html(&self) -> String {
        let unknown = Remembered::default();
        let (known, fault) = match &self.remembered {
            Ok(known) => (known, String::new()),
            Err(error) => (&unknown, format!(r#"<p class="fault">Jobs are not shown: {}</p>"#, Text(error))),
        };
        format!(
            r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="{REFRESH}">
<title>Tieline{title}</title>
<link rel="stylesheet" href="style.css">
</head>
<body>
<header>
<h1>Tieline</h1>
<p>{date} · refreshes every {REFRESH} seconds</p>
</header>
<main>
{fault}
{summary}
{plots}
{jobs}
{relays}
{parked}
</main>
<footer>
<p>Tieline {version}, running for {running} · <a href="status">status as JSON</a> · <a href="metrics">metrics</a></p>
</footer>
</body>
</html>
"#,
            title = self.title(known),
            date = date(self.now).replace('T', " ").replace('Z', " UTC"),
            summary = self.summary(known),
            plots = self.plots(&known.hours),
            jobs = tables::jobs(&known.status.jobs, self.now),
            relays = tables::relays(&self.relays, &known.status.jobs),
            parked = tables::parked(&known.status.parked),
            version = env!("CARGO_PKG_VERSION"),
            running = super::words::span(self.now.saturating_sub(self.history.began)),
        )
    }

    /// What a tab in the background shows.
    fn title(&self, known: &Remembered) -> String {
        let troubled = known.status.jobs.iter().filter(|job| tables::mood(job.state) == "bad").count();
        if troubled > 0 { format!(": {troubled} in trouble") } else { String::new() }
    }

    fn summary(&self, known: &Remembered) -> String {
        // What needs a person comes first.
        let rank =
            |state| ["bad", "warn", "busy", "good", "quiet"].iter().position(|mood| *mood == tables::mood(state));
        let mut states: BTreeMap<_, u64> = BTreeMap::new();
        for job in &known.status.jobs {
            *states.entry((rank(job.state), job.state)).or_default() += 1;
        }
        let jobs: String = states
            .iter()
            .map(|((_, state), count)| tile(&number(*count), state.as_str(), tables::mood(*state)))
            .collect();
        let connected = self.relays.iter().filter(|(_, health)| health.connected).count();
        let relays = format!("{connected} of {}", self.relays.len());
        let parked: u64 = known.status.parked.iter().map(|row| row.count).sum();
        format!(
            r#"<ul class="tiles">{jobs}{}{}</ul>"#,
            tile(&relays, "relays connected", "quiet"),
            tile(&number(parked), "ids parked", "quiet")
        )
    }

    fn plots(&self, runs: &[HourRow]) -> String {
        let start = first_hour(self.now);
        let mut hours: BTreeMap<Timestamp, HourRow> = runs.iter().map(|row| (row.start, *row)).collect();
        for sample in &self.history.samples {
            // The end of a sample may be the beginning of the next hour.
            let start = sample.until.saturating_sub(1) / 3600 * 3600;
            let hour = hours.entry(start).or_insert(HourRow { start, down: 0, up: 0 });
            hour.down += sample.live.down;
            hour.up += sample.live.up;
        }
        let hours: Vec<_> = hours.into_values().filter(|hour| hour.start >= start).collect();
        format!(
            r#"<div class="plots">
<figure>
<h2>Events moved per hour</h2>
<p class="key"><span class="up"></span>to peers <span class="down"></span>from peers</p>
{moved}
<figcaption>From the last {RUNS_KEPT} runs of each job, and what live streams passed on since this process began, {began}. Times are UTC.</figcaption>
</figure>
<figure>
<h2>Live lag</h2>
<p class="key"><span class="half"></span>half of the events <span class="most"></span>99 of 100</p>
{lags}
<figcaption>From an event’s arrival to the other relay’s OK: the time within which they made it, in steps. Sampled every {minutes} minutes, and kept only while this process runs: nothing is known of the time in grey.</figcaption>
</figure>
</div>"#,
            moved = plot::moved(&hours, start),
            lags = plot::lags(&self.history.samples, self.history.began, start),
            began = moment(self.history.began, self.now),
            minutes = super::history::EVERY.as_secs() / 60,
        )
    }
}

fn tile(figure: &str, words: &str, mood: &str) -> String {
    format!(r#"<li class="{mood}"><b>{}</b> {}</li>"#, Text(figure), Text(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::LiveTotals;

    #[test]
    fn runs_and_streams_share_the_bars() {
        let hour = 1_800_000_000;
        let mut history = History::new(hour - 300, LiveTotals::default());
        // It ends with the hour, and so belongs to it.
        history.sample(hour, LiveTotals { down: 5, up: 7, ..LiveTotals::default() });
        history.sample(hour + 1, LiveTotals { down: 6, up: 7, ..LiveTotals::default() });
        let hours = vec![HourRow { start: hour - 3600, down: 100, up: 0 }];
        let remembered = Ok(Remembered { status: StatusView::default(), hours });
        let html = Page { now: hour + 1, relays: Vec::new(), history, remembered }.html();
        assert!(html.contains("<title>07:00–08:00 UTC: 7 to peers, 105 from peers</title>"), "{html}");
        assert!(html.contains("<title>08:00–09:00 UTC: 0 to peers, 1 from peers</title>"), "{html}");
    }
}
