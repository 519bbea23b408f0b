//! Reports for people: the display while jobs run, the table when they have ended.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use indicatif::{HumanBytes, HumanCount, HumanDuration, MultiProgress, ProgressBar, ProgressStyle};
use tokio::sync::watch;

use crate::job::{Phase, Progress};
use crate::job_spec::{JobSpec, Side};
use crate::outcome::{Moved, Report};

/// One line per job under way, on standard error; nothing where that is no terminal.
pub struct Display(MultiProgress);

impl Display {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self(MultiProgress::new())
    }

    /// Shows a job until it ends.
    pub async fn follow(&self, spec: &JobSpec, mut view: watch::Receiver<Progress>) {
        let bar = self.0.add(ProgressBar::new_spinner());
        // The template is a constant that indicatif accepts.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix}  {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(format!("{}/{}", spec.peer, spec.name));
        bar.enable_steady_tick(Duration::from_millis(120));
        let mut rate = Rate::default();
        let mut redraw = tokio::time::interval(Duration::from_millis(250));
        loop {
            redraw.tick().await;
            let progress = *view.borrow_and_update();
            if progress.phase == Phase::Done || view.has_changed().is_err() {
                break;
            }
            let settled = progress.settled.local + progress.settled.peer;
            let found = |side| HumanCount(progress.found[side]);
            bar.set_message(format!(
                "pass {} {}  found ↓{} ↑{}  done {}  {:.0}/s",
                progress.pass,
                progress.phase.as_str(),
                found(Side::Peer),
                found(Side::Local),
                HumanCount(settled),
                rate.per_second(settled),
            ));
        }
        bar.finish_and_clear();
    }
}

/// Events per second, smoothed over the last few redraws.
#[derive(Default)]
struct Rate {
    last: u64,
    smooth: f64,
}

impl Rate {
    fn per_second(&mut self, total: u64) -> f64 {
        // Four redraws a second; a precise number of events is not at stake.
        #[allow(clippy::cast_precision_loss)]
        let now = total.saturating_sub(self.last) as f64 * 4.0;
        self.last = total;
        self.smooth = self.smooth * 0.7 + now * 0.3;
        self.smooth
    }
}

/// The table that ends a run, and below it what went wrong.
#[must_use]
pub fn table(reports: &[Report]) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY);
    table.set_header(["job", "outcome", "way", "found ↓/↑", "stored ↓/↑", "not moved", "traffic", "time"]);
    for report in reports {
        let (down, up) = (&report.downloaded, &report.uploaded);
        let traffic =
            report.bytes_sent.local + report.bytes_sent.peer + report.bytes_received.local + report.bytes_received.peer;
        table.add_row([
            format!("{}/{} ({})", report.peer, report.filter, report.direction),
            report.outcome.to_string(),
            report.strategy.unwrap_or("-").to_owned(),
            format!("{} / {}", HumanCount(report.peer_only), HumanCount(report.local_only)),
            format!("{} / {}", HumanCount(down.stored), HumanCount(up.stored)),
            not_moved(report),
            HumanBytes(traffic).to_string(),
            time(report.duration_ms),
        ]);
    }
    for column in [3, 4, 6, 7] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = table.to_string();
    for report in reports {
        for gap in &report.gaps {
            text.push_str(&format!(
                "\n{}/{}: the {} relay holds more events in second {} than the {} it returns at once: \
                 some of them could not be compared",
                report.peer, report.filter, gap.side, gap.second, gap.cap
            ));
        }
        if let Some(error) = &report.error {
            text.push_str(&format!("\n{}/{}: {error}", report.peer, report.filter));
        }
    }
    text
}

/// What was found and not stored, by reason.
fn not_moved(report: &Report) -> String {
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    let mut add = |reason, count| {
        if count > 0 {
            *reasons.entry(reason).or_default() += count;
        }
    };
    for moved in [&report.downloaded, &report.uploaded] {
        let Moved { refused, skipped, .. } = moved;
        for (reason, count) in refused.iter().chain(skipped) {
            add(reason, *count);
        }
        add("duplicate", moved.duplicate);
        add("vanished", moved.vanished);
        add("failed", moved.failed);
        add("parked", moved.parked);
    }
    if reasons.is_empty() {
        return "-".to_owned();
    }
    reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect::<Vec<_>>().join(", ")
}

fn time(ms: u64) -> String {
    if ms < 10_000 { format!("{ms} ms") } else { HumanDuration(Duration::from_millis(ms)).to_string() }
}
