//! Why a relay said no: the machine-readable word, and what Tieline makes of it.

use std::fmt;

/// Text that a peer chose: cut to 512 bytes and free of control characters, so that it cannot
/// fill a disk or steer a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerText(String);

/// What of a peer's text is kept. As strfry keeps of its peers' texts.
const PEER_TEXT_BYTES: usize = 512;

impl PeerText {
    /// Cuts and cleans.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let text = &text[..text.floor_char_boundary(PEER_TEXT_BYTES)];
        Self(text.chars().filter(|c| !c.is_control()).collect())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PeerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The word before the colon of a reason (NIP-01, NIP-42, and what relays send besides).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Prefix {
    /// The relay wants to know who asks (NIP-42).
    AuthRequired,
    /// Policy: not this event, or not from this author.
    Blocked,
    /// NIP-77: the session is gone. In reports: the relay ended the connection instead of an OK.
    Closed,
    /// strfry: a deletion request forbids this event.
    Deleted,
    /// The relay has it.
    Duplicate,
    /// Something went wrong at the relay.
    Error,
    /// Malformed, or outside the relay's limits.
    Invalid,
    /// Taken and dropped: nobody hears it.
    Mute,
    /// Too little proof of work.
    Pow,
    /// GRASP: taken and hidden until its git data arrives.
    Purgatory,
    /// Slow down.
    RateLimited,
    /// strfry: a newer version is held.
    Replaced,
    /// Policy: not for whoever asks.
    Restricted,
    /// The relay does not know the request.
    Unsupported,
    /// No word, or one that nobody has written down.
    Unknown,
}

impl Prefix {
    const ALL: [(&'static str, Self); 14] = [
        ("auth-required", Self::AuthRequired),
        ("blocked", Self::Blocked),
        ("closed", Self::Closed),
        ("deleted", Self::Deleted),
        ("duplicate", Self::Duplicate),
        ("error", Self::Error),
        ("invalid", Self::Invalid),
        ("mute", Self::Mute),
        ("pow", Self::Pow),
        ("purgatory", Self::Purgatory),
        ("rate-limited", Self::RateLimited),
        ("replaced", Self::Replaced),
        ("restricted", Self::Restricted),
        ("unsupported", Self::Unsupported),
    ];

    /// The word itself, a closed set fit for a report or a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, prefix)| *prefix == self).map_or("unknown", |(word, _)| word)
    }
}

/// A reason as it came with OK, CLOSED or NEG-ERR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The word before the colon.
    pub prefix: Prefix,
    /// All of it, cut and cleaned.
    pub text: PeerText,
}

impl Reason {
    /// Reads a reason. A leading `ERROR: ` is stripped first: strfry puts it even before
    /// `auth-required:`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let shown = PeerText::new(text);
        let mut rest = text.trim_start();
        if rest.get(..7).is_some_and(|head| head.eq_ignore_ascii_case("error: ")) && has_word(&rest[7..]) {
            rest = rest[7..].trim_start();
        }
        let word = rest.split_once(':').map_or("", |(word, _)| word.trim());
        let prefix = Prefix::ALL
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(word))
            .map_or(Prefix::Unknown, |&(_, prefix)| prefix);
        Self { prefix, text: shown }
    }

    /// Whether it says that more subscriptions are open than the relay allows.
    #[must_use]
    pub fn is_about_subscriptions(&self) -> bool {
        let text = self.text.as_str().to_ascii_lowercase();
        text.contains("subscription") || text.contains("concurrent") || text.contains("too many req")
    }

    /// Whether an `invalid:` is about time, so that the event may be taken later.
    #[must_use]
    pub fn is_about_time(&self) -> bool {
        let text = self.text.as_str().to_ascii_lowercase();
        self.prefix == Prefix::Invalid
            && ["future", "too late", "created_at", "timestamp"].iter().any(|word| text.contains(word))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.as_str().is_empty() { f.write_str("(no reason given)") } else { self.text.fmt(f) }
    }
}

/// Whether a reason word follows, so that `error: database is locked` keeps its `error`.
fn has_word(text: &str) -> bool {
    text.split_once(':')
        .is_some_and(|(word, _)| Prefix::ALL.iter().any(|(known, _)| known.eq_ignore_ascii_case(word.trim())))
}

/// What a relay's refusal of a NEG-OPEN, or its end of a session, means (NIP-77 and
/// PROTOCOL section 2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NegRefusal {
    /// It does not speak NIP-77. Holds for 24 hours.
    Unsupported(PeerText),
    /// The filter matches more than it reconciles at once; the maximum where it said so.
    TooBig {
        /// The most events it takes.
        max: Option<u64>,
        /// How many it found.
        found: Option<u64>,
    },
    /// It will not serve this filter to us.
    Restricted(PeerText),
    /// It has too many sessions under way.
    Busy(PeerText),
    /// The session is broken or was dropped.
    Broken(PeerText),
    /// No answer in time.
    Silent,
}

impl NegRefusal {
    /// Reads a NEG-ERR, or a CLOSED that carries a NEG id. `auth-required:` does not come here:
    /// the connection answers it.
    #[must_use]
    pub fn from_reason(reason: &Reason, max: Option<u64>) -> Self {
        let text = reason.text.as_str().to_ascii_lowercase();
        let counts = counts(&text);
        if text.contains("concurrent") {
            return Self::Busy(reason.text.clone());
        }
        let too_big = ["too many", "too large", "too big", "max_sync"].iter().any(|word| text.contains(word));
        if max.is_some() || too_big || counts.is_some() {
            return Self::TooBig { max: max.or(counts.map(|c| c.1)), found: counts.map(|c| c.0) };
        }
        match reason.prefix {
            Prefix::Restricted | Prefix::AuthRequired => Self::Restricted(reason.text.clone()),
            Prefix::RateLimited => Self::Busy(reason.text.clone()),
            // A bare `blocked:` is not "too big": reading it so has cost others 2^31 windows.
            Prefix::Blocked | Prefix::Unsupported => Self::Unsupported(reason.text.clone()),
            _ if text.contains("disabled") => Self::Unsupported(reason.text.clone()),
            _ => Self::Broken(reason.text.clone()),
        }
    }

    /// Reads a NOTICE that came while a NEG-OPEN was unanswered.
    #[must_use]
    pub fn from_notice(notice: &PeerText) -> Option<Self> {
        let text = notice.as_str().to_ascii_lowercase();
        if text.contains("too many concurrent") {
            return Some(Self::Busy(notice.clone()));
        }
        const WORDS: [&str; 11] = [
            "neg-open",
            "negentropy",
            "envelope",
            "unknown cmd",
            "unknown command",
            "unsupported",
            "unrecognized",
            "bad msg",
            "bad message",
            "could not parse",
            "invalid",
        ];
        WORDS.iter().any(|word| text.contains(word)).then(|| Self::Unsupported(notice.clone()))
    }
}

impl fmt::Display for NegRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(text) => write!(f, "does not speak NIP-77 ({text})"),
            Self::TooBig { max: Some(max), .. } => write!(f, "reconciles at most {max} events at once"),
            Self::TooBig { max: None, .. } => f.write_str("the filter matches too many events"),
            Self::Restricted(text) => write!(f, "does not serve this filter ({text})"),
            Self::Busy(text) => write!(f, "has too many sessions under way ({text})"),
            Self::Broken(text) => write!(f, "ended the session ({text})"),
            Self::Silent => f.write_str("did not answer NEG-OPEN"),
        }
    }
}

/// `(N > M)` as relays write it: what they found and what they take.
fn counts(text: &str) -> Option<(u64, u64)> {
    let (before, after) = text.split_once('>')?;
    let digits = |c: char| !c.is_ascii_digit();
    let found = before.trim_end().rsplit(digits).next()?.parse().ok()?;
    let max = after.trim_start().split(digits).next()?.parse().ok()?;
    Some((found, max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_before_the_colon_is_read() {
        let table = [
            ("duplicate: have it", Prefix::Duplicate),
            ("ERROR: auth-required: who are you", Prefix::AuthRequired),
            ("Error: blocked: no", Prefix::Blocked),
            ("error: database is locked", Prefix::Error),
            ("error: unknown", Prefix::Error),
            ("ERROR: bad req: uneven size", Prefix::Error),
            ("", Prefix::Unknown),
            ("nope", Prefix::Unknown),
            ("RATE-LIMITED: slow down", Prefix::RateLimited),
            ("purgatory: awaiting git data", Prefix::Purgatory),
            ("érror: x", Prefix::Unknown),
        ];
        for (text, prefix) in table {
            assert_eq!(Reason::parse(text).prefix, prefix, "{text}");
        }
    }

    #[test]
    fn peer_text_is_bounded_and_clean() {
        let text = PeerText::new(&format!("a\u{1b}[31m\n{}", "é".repeat(1000)));
        assert!(text.as_str().starts_with("a[31m") && text.as_str().len() <= 512);
    }

    #[test]
    fn a_refusal_to_reconcile_is_read_as_what_to_do() {
        let read = |text: &str, max| NegRefusal::from_reason(&Reason::parse(text), max);
        let too_big = |max, found| NegRefusal::TooBig { max, found };
        assert_eq!(read("blocked: too many query results", None), too_big(None, None));
        assert_eq!(read("blocked: query too large (7000 > 500)", None), too_big(Some(500), Some(7000)));
        assert_eq!(read("blocked: no", Some(100)), too_big(Some(100), None));
        assert_eq!(read("error: max_sync_events exceeded", None), too_big(None, None));
        assert!(matches!(read("blocked: negentropy off", None), NegRefusal::Unsupported(_)));
        assert!(matches!(read("negentropy disabled", None), NegRefusal::Unsupported(_)));
        assert!(matches!(read("restricted: members only", None), NegRefusal::Restricted(_)));
        for broken in ["closed: idle", "error: lost", "PROTOCOL-ERROR", ""] {
            assert!(matches!(read(broken, None), NegRefusal::Broken(_)), "{broken}");
        }
        assert!(matches!(read("error: too many concurrent NEG requests", None), NegRefusal::Busy(_)));
    }

    #[test]
    fn a_notice_about_something_else_is_no_refusal() {
        let read = |text| NegRefusal::from_notice(&PeerText::new(text));
        for text in ["ERROR: bad msg: unknown cmd", "Unrecognized envelope", "invalid: x", "negentropy disabled"] {
            assert!(matches!(read(text), Some(NegRefusal::Unsupported(_))), "{text}");
        }
        assert!(matches!(read("ERROR: too many concurrent NEG requests"), Some(NegRefusal::Busy(_))));
        assert_eq!(read("welcome to my relay"), None);
    }
}
