//! Texts, times and numbers as a person reads them.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use crate::nostr::Timestamp;

/// A text from outside, made harmless between tags and in quoted attributes.
pub(super) struct Text<'a>(pub(super) &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // They would let a text rearrange the words around it.
                '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
                c if c.is_control() => f.write_str(" ")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

/// A moment, as people count from now, with the date to be looked up.
pub(super) fn moment(then: Timestamp, now: Timestamp) -> String {
    let words = match (then.checked_sub(now), now.checked_sub(then)) {
        (Some(0), _) => "now".to_owned(),
        (Some(ahead), _) => format!("in {}", span(ahead)),
        (None, past) => format!("{} ago", span(past.unwrap_or_default())),
    };
    let date = date(then);
    format!(r#"<time datetime="{date}" title="{date}">{words}</time>"#)
}

/// A length of time in seconds, in its largest unit.
pub(super) fn span(seconds: u64) -> String {
    match seconds {
        0..=99 => format!("{seconds}\u{a0}s"),
        100..=5999 => format!("{}\u{a0}min", seconds / 60),
        6000..=172_799 => format!("{}\u{a0}h", seconds / 3600),
        _ => format!("{}\u{a0}days", seconds / 86_400),
    }
}

/// A length of time in milliseconds.
pub(super) fn took(millis: u64) -> String {
    match millis {
        0..=999 => format!("{millis}\u{a0}ms"),
        1000..=99_999 => format!("{}.{}\u{a0}s", millis / 1000, millis % 1000 / 100),
        _ => span(millis / 1000),
    }
}

/// Date and time, UTC.
pub(super) fn date(then: Timestamp) -> String {
    // The last second of the year 9999: there is no way to write a later one.
    let then = Duration::from_secs(then.min(253_402_300_799));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + then).to_string()
}

/// A number, in groups of three digits.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number of bytes, in its largest unit.
pub(super) fn bytes(bytes: u64) -> String {
    let units = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)];
    let unit = units.into_iter().find(|(_, size)| bytes >= *size);
    unit.map_or_else(
        || format!("{bytes}\u{a0}B"),
        |(unit, size)| format!("{}.{}\u{a0}{unit}", bytes / size, bytes % size * 10 / size),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cannot_leave_its_place() {
        let text = Text("<script>alert(\"1\") & '2'</script>\u{202e}\n").to_string();
        assert_eq!(text, "&lt;script&gt;alert(&quot;1&quot;) &amp; &#39;2&#39;&lt;/script&gt; ");
    }

    #[test]
    fn times_and_numbers_are_short() {
        let now = 1_800_000_000;
        for (then, words) in [
            (now, "now"),
            (now + 99, "in 99\u{a0}s"),
            (now - 100, "1\u{a0}min ago"),
            (now - 7200, "2\u{a0}h ago"),
            (0, "20833\u{a0}days ago"),
        ] {
            assert!(moment(then, now).contains(&format!(">{words}<")), "{}", moment(then, now));
        }
        assert_eq!(date(now), "2027-01-15T08:00:00Z");
        assert_eq!(date(u64::MAX), "9999-12-31T23:59:59Z");
        assert_eq!([0, 999, 1000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 999, 1049, 22_000_000].map(bytes), ["0\u{a0}B", "999\u{a0}B", "1.0\u{a0}kB", "22.0\u{a0}MB"]);
        assert_eq!([7, 1049, 600_000].map(took), ["7\u{a0}ms", "1.0\u{a0}s", "10\u{a0}min"]);
    }
}
