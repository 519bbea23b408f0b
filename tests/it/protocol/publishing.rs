//! What an OK means, and its absence (PROTOCOL.md, section 1).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tieline::job_spec::Direction;
use tieline::outcome::{Ending, Report};

use super::{Case, DAY, HOUR, all, not_stored, notes};
use crate::support::events::Event;
use crate::support::model::{Quirks, Verdict};

/// What the peer makes of an event.
type Judge = fn(&Event) -> Verdict;

/// Three notes are pushed, and one of them, the newest, gets this verdict: the others get there.
struct Pushed {
    case: Case,
    subject: Event,
}

impl Pushed {
    async fn start(judge: Judge) -> Self {
        let subject = notes(6).pop().unwrap();
        let id = subject.id.clone();
        let quirks =
            Quirks::default().on_event(move |event| if event.id == id { judge(event) } else { Verdict::Usual });
        Self { case: Case::push(quirks, 3).await, subject }
    }

    /// Runs the job, and says what became of the one note and how often it was offered.
    async fn run(&self) -> (Report, String, usize) {
        self.case.peer.clear_record();
        let report = self.case.run().await;
        let offers = self.case.peer.offered().iter().filter(|id| **id == self.subject.id).count();
        let fate = not_stored(&report.uploaded);
        (report, fate, offers)
    }
}

fn refuse(text: &str) -> Verdict {
    Verdict::Refuse(text.into())
}

fn swallow(text: &str) -> Verdict {
    Verdict::Swallow(text.into())
}

#[tokio::test]
async fn what_is_taken_is_stored_or_was_there() {
    let rows: [(Judge, u64, &str); 5] = [
        (|_| Verdict::Say(String::new()), 3, ""),
        (|_| Verdict::Say("stored it for you".into()), 3, ""),
        (|_| Verdict::Say("error: not really".into()), 3, ""),
        (|_| Verdict::Say("duplicate: have it".into()), 2, "1 duplicate"),
        (|_| Verdict::Usual, 3, ""),
    ];
    all(rows.into_iter().map(|(judge, stored, fate)| async move {
        let pushed = Pushed::start(judge).await;
        let (report, found, offers) = pushed.run().await;
        assert_eq!((report.outcome, report.passes), (Ending::Converged, 2));
        assert_eq!((report.uploaded.stored, found.as_str(), offers), (stored, fate, 1));
        assert_eq!(pushed.case.parked(&pushed.subject.id).await, None);
        let (next, found, offers) = pushed.run().await;
        assert_eq!((next.outcome, next.local_only, found.as_str(), offers), (Ending::Converged, 0, "", 0));
    }))
    .await;
}

/// Verdicts that hold: the event is parked, and not offered again in the next run.
#[tokio::test]
async fn what_is_refused_is_parked() {
    let rows: [(&str, Judge, &str, usize, &str, u64); 17] = [
        ("lost", |_| swallow(""), "1 refused:not-served", 2, "not-served", 7 * DAY),
        ("had", |_| swallow("duplicate: had it once"), "1 refused:not-served", 1, "not-served", 7 * DAY),
        ("hidden", |_| swallow("purgatory: no git data"), "1 refused:purgatory", 1, "hidden:purgatory", HOUR / 2),
        ("muted", |_| swallow("mute: nobody listens"), "1 refused:mute", 1, "hidden:mute", HOUR / 2),
        ("replaced", |_| refuse("replaced: have newer"), "1 refused:replaced", 1, "refused:replaced", 30 * DAY),
        ("deleted", |_| refuse("deleted: by its author"), "1 refused:deleted", 1, "refused:deleted", 30 * DAY),
        ("invalid", |_| refuse("invalid: bad tag"), "1 refused:invalid", 1, "refused:invalid", 30 * DAY),
        ("future", |_| refuse("invalid: too far in the future"), "1 refused:invalid", 1, "early", HOUR / 2),
        ("late", |_| refuse("invalid: created_at is too late"), "1 refused:invalid", 1, "early", HOUR / 2),
        ("blocked", |_| refuse("blocked: banned"), "1 refused:blocked", 1, "refused:blocked", 7 * DAY),
        ("strfry", |_| refuse("ERROR: blocked: banned"), "1 refused:blocked", 1, "refused:blocked", 7 * DAY),
        ("capitals", |_| refuse("Blocked: banned"), "1 refused:blocked", 1, "refused:blocked", 7 * DAY),
        ("restricted", |_| refuse("restricted: members"), "1 refused:restricted", 1, "refused:restricted", 7 * DAY),
        ("pow", |_| refuse("pow: 25 bits needed"), "1 refused:pow", 1, "refused:pow", 7 * DAY),
        ("mute, false", |_| refuse("mute: no"), "1 refused:mute", 1, "hidden:mute", HOUR / 2),
        ("purgatory, false", |_| refuse("purgatory: no"), "1 refused:purgatory", 1, "hidden:purgatory", HOUR / 2),
        // The OK names no event; it is the last one under way.
        (
            "no id",
            |_| Verdict::Raw(r#"["OK","",false,"invalid: what is this?"]"#.into()),
            "1 refused:invalid",
            1,
            "refused:invalid",
            30 * DAY,
        ),
    ];
    all(rows.into_iter().map(|(row, judge, fate, offers, reason, time)| async move {
        let pushed = Pushed::start(judge).await;
        let (report, found, offered) = pushed.run().await;
        assert_eq!((report.outcome, report.uploaded.stored), (Ending::Converged, 2), "{row}: {report:#?}");
        assert_eq!((found.as_str(), offered), (fate, offers), "{row}");
        assert_eq!(pushed.case.parked(&pushed.subject.id).await, Some((reason.to_owned(), time)), "{row}");
        let (next, found, offered) = pushed.run().await;
        assert_eq!((next.outcome, next.passes, next.parked), (Ending::Converged, 1, 1), "{row}");
        assert_eq!((found.as_str(), offered), ("1 parked", 0), "{row}");
    }))
    .await;
}

/// The relay has it, says so with `false`, and does not serve it.
#[tokio::test]
async fn a_duplicate_that_is_refused_is_not_offered_again() {
    let pushed = Pushed::start(|_| refuse("duplicate: have it")).await;
    let (report, _, offers) = pushed.run().await;
    assert_eq!((report.outcome, report.uploaded.stored, offers), (Ending::Converged, 2, 1));
    assert!(pushed.case.parked(&pushed.subject.id).await.is_some());
    let (next, fate, offers) = pushed.run().await;
    assert_eq!((next.outcome, fate.as_str(), offers), (Ending::Converged, "1 parked", 0));
}

/// rust-nostr says so of a superseded event, and of nothing else that is replaceable.
#[tokio::test]
async fn an_unknown_error_about_a_replaceable_event_means_replaced() {
    let quirks = Quirks::default().on_event(|_| refuse("error: unknown"));
    let mut case = Case::new(quirks, Direction::Push).await;
    case.limits.passes = 2;
    let profile = crate::support::events::Author::new(1).replaceable(0, crate::support::events::EPOCH, "{}");
    case.local.fill(&[profile.clone(), notes(1).remove(0)]);
    let report = case.run_filter(r#"{"kinds":[0,1]}"#).await;
    assert_eq!(report.outcome, Ending::Partial);
    assert_eq!(not_stored(&report.uploaded), "1 refused:replaced, 1 failed");
    assert_eq!(case.parked(&profile.id).await, Some(("refused:replaced".to_owned(), 30 * DAY)));
}

/// Verdicts that do not hold: the event is offered in every pass, and again in the next run.
#[tokio::test]
async fn what_failed_is_offered_again() {
    let rows: [(&str, Judge); 6] = [
        ("error", |_| refuse("error: database is locked")),
        ("unknown", |_| refuse("because")),
        ("empty", |_| refuse("")),
        ("another word", |_| refuse("teapot: short and stout")),
        ("unsupported", |_| refuse("unsupported: no")),
        ("a future word for true", |_| Verdict::Raw(r#"["OK",1,2,3]"#.into())),
    ];
    all(rows.into_iter().map(|(row, judge)| async move {
        let pushed = Pushed { case: Pushed::start(judge).await.case.impatient(), subject: notes(6).pop().unwrap() };
        for _ in 0..2 {
            let (report, fate, offers) = pushed.run().await;
            assert_eq!((report.outcome, report.passes), (Ending::Partial, 2), "{row}");
            assert_eq!((fate.as_str(), offers), ("1 failed", 2), "{row}");
        }
        assert_eq!(pushed.case.parked(&pushed.subject.id).await, None, "{row}");
    }))
    .await;
}

#[tokio::test]
async fn a_passing_error_passes() {
    let refusals = Arc::new(AtomicUsize::new(0));
    let count = refusals.clone();
    let quirks = Quirks::default().on_event(move |_| {
        if count.fetch_add(1, Ordering::Relaxed) < 3 { refuse("error: busy") } else { Verdict::Usual }
    });
    let case = Case::push(quirks, 3).await;
    let report = case.run().await;
    assert_eq!((report.outcome, report.uploaded.stored, report.passes), (Ending::Converged, 3, 3));
}

#[tokio::test]
async fn no_ok_at_all_is_a_failure_of_that_event() {
    let Pushed { case, subject } = Pushed::start(|_| Verdict::Ignore).await;
    let pushed = Pushed { case: case.impatient(), subject };
    let (report, fate, offers) = pushed.run().await;
    assert_eq!((report.outcome, report.uploaded.stored), (Ending::Partial, 2));
    assert_eq!((fate.as_str(), offers), ("1 failed", 2));
}

/// The next pass shows that it is there, whatever was not said.
#[tokio::test]
async fn an_event_that_was_kept_without_an_ok_is_stored() {
    let Pushed { case, subject } = Pushed::start(|_| Verdict::KeepSilently).await;
    let pushed = Pushed { case: case.impatient(), subject };
    let (report, fate, offers) = pushed.run().await;
    assert_eq!((report.outcome, report.uploaded.stored), (Ending::Converged, 3));
    assert_eq!((fate.as_str(), offers), ("", 1));
}

#[tokio::test]
async fn an_ok_for_another_event_is_nobodys() {
    let Pushed { case, subject } =
        Pushed::start(|_| Verdict::Raw(json!(["OK", "ab".repeat(32), true, ""]).to_string())).await;
    let pushed = Pushed { case: case.impatient(), subject };
    let (report, fate, _) = pushed.run().await;
    assert_eq!((report.outcome, fate.as_str()), (Ending::Partial, "1 failed"));
}

#[tokio::test]
async fn a_relay_that_disconnects_on_an_event_is_a_failure() {
    let Pushed { case, subject } = Pushed::start(|_| Verdict::Disconnect).await;
    let mut pushed = Pushed { case: case.impatient(), subject };
    pushed.case.limits.passes = 1;
    let (report, fate, _) = pushed.run().await;
    assert_eq!((report.outcome, fate.as_str()), (Ending::Failed, "1 failed"), "{report:#?}");
    assert!(report.error.unwrap().contains("the connection was lost"));
    assert_eq!(pushed.case.peer.ids(&json!({})).len(), 5, "what was acknowledged stays done");
}

#[tokio::test]
async fn an_event_that_breaks_the_connection_does_not_keep_the_others_away() {
    // Not the last of them: what is older goes first.
    let poison = notes(80)[60].id.clone();
    let id = poison.clone();
    let quirks =
        Quirks::default().on_event(move |event| if event.id == id { Verdict::Disconnect } else { Verdict::Usual });
    let case = Case::push(quirks, 40).await;
    // 40 at once, then 16, then one: then it is known.
    let first = case.run().await;
    assert_eq!(not_stored(&first.uploaded), "1 refused:closed", "{first:#?}");
    let second = case.run().await;
    assert_eq!((second.outcome, second.parked), (Ending::Converged, 1), "{second:#?}");
    assert_eq!(case.peer.ids(&json!({})).len(), 79);
    case.peer.clear_record();
    case.run().await;
    assert!(case.peer.offered().is_empty());
}

/// A line that ends again and again ends on some event each time, which is no fault of that event.
#[tokio::test]
async fn an_event_on_which_a_flapping_line_ended_is_not_blamed() {
    let taken = Arc::new(AtomicUsize::new(0));
    let quirks = Quirks::default().on_event({
        let taken = taken.clone();
        move |_| match taken.fetch_add(1, Ordering::Relaxed) % 8 {
            7 => Verdict::Disconnect,
            _ => Verdict::Usual,
        }
    });
    let case = Case::push(quirks, 40).await;
    for _ in 0..4 {
        let report = case.run().await;
        assert_eq!(report.uploaded.refused.values().sum::<u64>() + report.parked, 0, "{report:#?}");
        if report.outcome == Ending::Converged {
            break;
        }
    }
    assert_eq!(case.peer.ids(&json!({})).len(), 80);
}

#[tokio::test]
async fn a_relay_that_wants_a_pause_gets_it() {
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    // Every sixth event is one too many.
    let quirks = Quirks::default().on_event(move |_| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        if number % 6 == 5 { refuse("rate-limited: slow down") } else { Verdict::Usual }
    });
    let case = Case::push(quirks, 20).await;
    let report = case.run().await;
    assert_eq!((report.outcome, report.uploaded.stored, report.passes), (Ending::Converged, 20, 2));
    assert_eq!(not_stored(&report.uploaded), "");
}

#[tokio::test]
async fn nothing_is_sent_in_a_pause() {
    let (times, limited) = (Arc::new(std::sync::Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let (noted, count) = (times.clone(), limited.clone());
    let quirks = Quirks::default().on_event(move |_| {
        noted.lock().unwrap().push(tokio::time::Instant::now());
        if count.fetch_add(1, Ordering::Relaxed) == 0 { refuse("rate-limited: later") } else { Verdict::Usual }
    });
    let mut case = Case::push(quirks, 1).await;
    case.cooldown = Duration::from_millis(700);
    let report = case.run().await;
    assert_eq!((report.outcome, report.uploaded.stored), (Ending::Converged, 1));
    let times = times.lock().unwrap();
    assert!(times[1] - times[0] >= Duration::from_millis(700), "{:?}", times[1] - times[0]);
}

#[tokio::test]
async fn a_relay_that_never_takes_anything_is_left_alone() {
    let quirks = Quirks::default().on_event(|_| refuse("rate-limited: come back tomorrow"));
    let case = Case::push(quirks, 3).await;
    let report = case.run().await;
    assert_eq!((report.outcome, not_stored(&report.uploaded).as_str()), (Ending::Blocked, "3 failed"));
    assert!(report.error.unwrap().contains("come back tomorrow"));
}

#[tokio::test]
async fn refusal_after_refusal_stops_the_uploads() {
    let long = "blocked: \u{1b}[31m".to_owned() + &"no ".repeat(1000);
    let quirks = Quirks::default().on_event(move |_| Verdict::Refuse(long.clone()));
    let mut case = Case::push(quirks, 300).await;
    case.limits.publishes_in_flight = 10;
    let report = case.run().await;
    assert_eq!(report.outcome, Ending::Blocked);
    let (refused, failed) = (report.uploaded.refused["blocked"], report.uploaded.failed);
    assert!((200..=210).contains(&refused) && refused + failed == 300, "{report:#?}");
    let error = report.error.unwrap();
    assert!(error.contains("uploads to it stopped") && error.len() < 1000, "{error}");
    assert!(!error.chars().any(char::is_control), "{error:?}");

    // The rest has its turn; what was refused has not.
    case.peer.clear_record();
    let next = case.run().await;
    assert_eq!(next.parked, refused);
    assert_eq!(case.peer.offered().len() as u64, failed);
}
