//! The plots: numbers in, SVG out. Colours are the style sheet's.

use std::fmt::Write as _;

use super::history::{HOURS, Sample};
use super::words::number;
use crate::metrics::LAGS;
use crate::nostr::Timestamp;
use crate::state::HourRow;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
/// Left of it stand the numbers, below `BOTTOM` the hours.
const LEFT: f64 = 56.0;
const RIGHT: f64 = WIDTH - 8.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = HEIGHT - 26.0;

const HOUR: u64 = 3600;

/// Events moved in each of the hours from `start` on: to peers above the line, from them below.
pub(super) fn moved(hours: &[HourRow], start: Timestamp) -> String {
    let most = |count: fn(&HourRow) -> u64| hours.iter().map(count).max().unwrap_or_default();
    let (up, down) = (most(|hour| hour.up), most(|hour| hour.down));
    let mut svg = open("Events moved per hour over the last day");
    if up + down == 0 {
        return empty(svg, start, "Nothing was moved in the last day");
    }
    let step = step(up + down);
    let (above, below) = (up.div_ceil(step), down.div_ceil(step));
    #[allow(clippy::cast_precision_loss, reason = "a pixel is coarser")]
    let height = |count: u64| count as f64 * (BOTTOM - TOP) / ((above + below) * step) as f64;
    let zero = TOP + height(above * step);
    for line in 1..=above {
        rule(&mut svg, zero - height(line * step), &number(line * step));
    }
    for line in 1..=below {
        rule(&mut svg, zero + height(line * step), &number(line * step));
    }
    rule(&mut svg, zero, "0");
    clock(&mut svg, start);
    let slot = (RIGHT - LEFT) / f64::from(HOURS_SHOWN);
    for hour in hours.iter().filter(|hour| hour.start >= start && hour.up + hour.down > 0) {
        let from = x(hour.start, start);
        let _ = write!(
            svg,
            "<g><title>{}–{} UTC: {} to peers, {} from peers</title>",
            time(hour.start),
            time(hour.start + HOUR),
            number(hour.up),
            number(hour.down)
        );
        // A single event among millions is still to be seen.
        for (class, count, at) in [("up", hour.up, -1.0), ("down", hour.down, 1.0)] {
            let height = height(count).max(if count > 0 { 2.0 } else { 0.0 });
            let y = if at < 0.0 { zero - height } else { zero };
            bar(&mut svg, class, (from + 1.5, slot - 3.0), (y, height));
        }
        svg.push_str("</g>");
    }
    let _ = write!(svg, r#"<path class="axis" d="M{LEFT} {zero:.1}H{RIGHT}"/>"#);
    svg + "</svg>"
}

/// How long live events took, from `start` on: as high as half of each sample's events stayed
/// below, and as 99 of 100 did. Nothing is known of the time before `began`.
pub(super) fn lags<'a>(samples: impl IntoIterator<Item = &'a Sample>, began: Timestamp, start: Timestamp) -> String {
    let mut svg = open("Time that live events took over the last day");
    let spells = spells(samples);
    if spells.is_empty() {
        return empty(svg, start, "No live event yet");
    }
    if began > start {
        svg.push_str("<g><title>Before this process began</title>");
        bar(&mut svg, "unknown", (LEFT, x(began, start) - LEFT), (TOP, BOTTOM - TOP));
        svg.push_str("</g>");
    }
    // A step per bucket of the histogram, whatever its width: nothing finer is known.
    #[allow(clippy::cast_precision_loss, reason = "there are ten")]
    let top = |bucket: usize| BOTTOM - (BOTTOM - TOP) * (bucket + 1) as f64 / (LAGS.len() + 1) as f64;
    for bucket in 0..=LAGS.len() {
        rule(&mut svg, top(bucket), &bound(bucket));
    }
    clock(&mut svg, start);
    for Spell { since, until, events, half, most } in spells {
        let (from, to) = (x(since, start), x(until, start));
        let _ = write!(
            svg,
            "<g><title>{}–{} UTC, {} live: half {}, 99 of 100 {}</title>",
            time(since),
            time(until),
            number(events),
            within(half),
            within(most)
        );
        for (class, bucket) in [("most", most), ("half", half)] {
            bar(&mut svg, class, (from, (to - from).max(1.5)), (top(bucket), BOTTOM - top(bucket)));
        }
        svg.push_str("</g>");
    }
    let _ = write!(svg, r#"<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>"#);
    svg + "</svg>"
}

/// A time in which lags stayed in the same buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Spell {
    since: Timestamp,
    until: Timestamp,
    events: u64,
    half: usize,
    most: usize,
}

fn spells<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Vec<Spell> {
    let mut spells: Vec<Spell> = Vec::new();
    for Sample { since, until, live } in samples {
        let (Some(half), Some(most)) = (reached(&live.lags, 50), reached(&live.lags, 99)) else { continue };
        let events = live.lags.iter().sum();
        match spells.last_mut() {
            Some(last) if last.until == *since && (last.half, last.most) == (half, most) => {
                last.until = *until;
                last.events += events;
            }
            _ => spells.push(Spell { since: *since, until: *until, events, half, most }),
        }
    }
    spells
}

/// The bucket that holds the last of the first `percent` events.
fn reached(buckets: &[u64], percent: u64) -> Option<usize> {
    let rank = (buckets.iter().sum::<u64>() * percent).div_ceil(100);
    let mut seen = 0;
    buckets.iter().position(|count| {
        seen += count;
        seen >= rank && rank > 0
    })
}

fn bound(bucket: usize) -> String {
    match LAGS.get(bucket) {
        Some(seconds) if *seconds < 1.0 => format!("{:.0} ms", seconds * 1000.0),
        Some(seconds) => format!("{seconds:.0} s"),
        None => "longer".to_owned(),
    }
}

fn within(bucket: usize) -> String {
    if bucket < LAGS.len() { format!("within {}", bound(bucket)) } else { "longer than 5 s".to_owned() }
}

/// A round number, four of which are about as much as `range`.
fn step(range: u64) -> u64 {
    let mut unit = 1;
    loop {
        if let Some(step) = [1, 2, 5].map(|factor| unit * factor).into_iter().find(|step| range / step <= 4) {
            return step;
        }
        unit *= 10;
    }
}

const HOURS_SHOWN: u8 = 24;
const _: () = assert!(HOURS_SHOWN as u64 == HOURS);

#[allow(clippy::cast_precision_loss, reason = "seconds of a day")]
fn x(at: Timestamp, start: Timestamp) -> f64 {
    let share = at.saturating_sub(start) as f64 / (HOURS * HOUR) as f64;
    LEFT + share.min(1.0) * (RIGHT - LEFT)
}

fn open(label: &str) -> String {
    format!(r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">"#)
}

fn empty(mut svg: String, start: Timestamp, words: &str) -> String {
    clock(&mut svg, start);
    let (x, y) = (f64::midpoint(LEFT, RIGHT), f64::midpoint(TOP, BOTTOM));
    let _ = write!(
        svg,
        r#"<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/><text class="none" x="{x}" y="{y}">{words}</text>"#
    );
    svg + "</svg>"
}

/// The hours below, every fourth of them.
fn clock(svg: &mut String, start: Timestamp) {
    for hour in (start..=start + HOURS * HOUR).step_by(3600).filter(|hour| (hour / HOUR).is_multiple_of(4)) {
        let (x, y) = (x(hour, start), BOTTOM + 18.0);
        let _ = write!(
            svg,
            r#"<path class="tick" d="M{x:.1} {BOTTOM}v5"/><text class="hour" x="{x:.1}" y="{y}">{}</text>"#,
            time(hour)
        );
    }
}

fn rule(svg: &mut String, y: f64, label: &str) {
    let (x, below) = (LEFT - 8.0, y + 4.0);
    let _ = write!(
        svg,
        r#"<path class="rule" d="M{LEFT} {y:.1}H{RIGHT}"/><text class="number" x="{x}" y="{below:.1}">{label}</text>"#
    );
}

fn bar(svg: &mut String, class: &str, (x, width): (f64, f64), (y, height): (f64, f64)) {
    if height > 0.0 {
        let _ = write!(svg, r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#);
    }
}

/// The time of day, UTC.
fn time(at: Timestamp) -> String {
    format!("{:02}:{:02}", at / HOUR % 24, at / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::LiveTotals;

    const START: Timestamp = 1_800_000_000;

    fn sample(minute: u64, lags: [u64; 10]) -> Sample {
        let since = START + minute * 60;
        Sample { since, until: since + 300, live: LiveTotals { lags, ..LiveTotals::default() } }
    }

    #[test]
    fn bars_stand_on_one_scale_and_none_is_lost() {
        let hours = [
            HourRow { start: START, down: 1_000_000, up: 0 },
            HourRow { start: START + 7200, down: 1, up: 500_000 },
            HourRow { start: START + 10_800, down: 0, up: 0 },
        ];
        let svg = moved(&hours, START);
        assert_eq!(svg.matches("<rect").count(), 3, "{svg}");
        // 202 pixels for 500,000 above the line and 1,000,000 below it.
        assert!(svg.contains(r#"class="up" x="105.5" y="12.0" width="21.0" height="67.3""#), "{svg}");
        assert!(svg.contains(r#"class="down" x="57.5" y="79.3" width="21.0" height="134.7""#), "{svg}");
        assert!(svg.contains(r#"height="2.0""#), "{svg}");
        assert!(svg.contains("<title>10:00–11:00 UTC: 500,000 to peers, 1 from peers</title>"), "{svg}");
        assert!(moved(&[], START).contains("Nothing was moved"));
    }

    #[test]
    fn a_scale_has_few_round_steps() {
        for (range, expected) in [(1, 1), (4, 1), (5, 2), (11, 5), (40, 10), (1_234_567, 500_000)] {
            assert_eq!(step(range), expected, "{range}");
        }
        assert!(step(u64::MAX) > 1 << 60);
    }

    #[test]
    fn equal_neighbours_are_one_spell() {
        let samples = [
            sample(0, [98, 1, 1, 0, 0, 0, 0, 0, 0, 0]),
            sample(5, [60, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
            sample(10, [0; 10]),
            sample(15, [60, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
            sample(20, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ];
        let found = spells(&samples);
        let spell = |minute: u64, minutes: u64, events, half, most| {
            let since = START + minute * 60;
            Spell { since, until: since + minutes * 60, events, half, most }
        };
        assert_eq!(found, [spell(0, 10, 161, 0, 1), spell(15, 5, 61, 0, 1), spell(20, 5, 1, 9, 9)]);

        let svg = lags(&samples, START, START);
        assert!(svg.contains("1 live: half longer than 5 s, 99 of 100 longer than 5 s"), "{svg}");
        assert!(svg.contains("half within 5 ms, 99 of 100 within 10 ms"), "{svg}");
        assert!(!svg.contains("unknown"));
        assert!(lags(&samples, START + 60, START).contains("unknown"));
        assert!(lags(&[], START, START).contains("No live event yet"));
    }
}
