//! The state through its handle. What concerns one table alone is tested beside it.

use std::fs;
use std::path::Path;

use tempfile::{TempDir, tempdir};

use super::*;
use crate::job_spec::{Direction, Limits, RelativeTime, StrategyChoice};
use crate::job_state::JobState;
use crate::nostr::Prefix;
use crate::outcome::{BySide, Ending, Moved, Skip};

const NOW: Timestamp = 1_800_000_000;
const DAY: u64 = 24 * 60 * 60;

pub(super) fn job(name: &str) -> JobSpec {
    JobSpec {
        peer: "community".to_owned(),
        name: name.to_owned(),
        local_url: relay("ws://127.0.0.1:7777"),
        peer_url: relay("wss://relay.example"),
        filter: format!(r##"{{"#t":["{name}"]}}"##).parse().unwrap(),
        relative: RelativeTime::default(),
        direction: Direction::Both,
        strategy: StrategyChoice::Auto,
        exclude: Vec::new(),
        limits: Limits::default(),
    }
}

pub(super) fn report(outcome: Ending) -> Report {
    Report {
        peer: "community".to_owned(),
        filter: "notes".to_owned(),
        direction: Direction::Both,
        strategy: Some("mediated"),
        outcome,
        passes: 2,
        scope: None,
        local_only: 3,
        peer_only: 120,
        downloaded: Moved { stored: 118, ..Moved::default() },
        uploaded: Moved { stored: 3, ..Moved::default() },
        parked: 0,
        gaps: Vec::new(),
        negentropy_rounds: 5,
        bytes_sent: BySide { local: 1, peer: 20 },
        bytes_received: BySide { local: 300, peer: 4000 },
        bodies_received: 123,
        duration_ms: 4120,
        error: matches!(outcome, Ending::Failed).then(|| "relay.example: connection refused".to_owned()),
        ids: None,
    }
}

fn relay(url: &str) -> RelayUrl {
    url.parse().unwrap()
}

fn id(n: u64) -> EventId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    bytes[24..].copy_from_slice(&n.to_be_bytes());
    EventId::new(bytes)
}

fn facts(ids: std::ops::Range<u64>, reason: ParkReason) -> Vec<(EventId, ParkReason)> {
    ids.map(|n| (id(n), reason)).collect()
}

fn count(dst: &RelayUrl, reason: &str, count: u64) -> ParkedCount {
    ParkedCount { destination: dst.to_string(), reason: reason.to_owned(), count }
}

const BLOCKED: ParkReason = ParkReason::Refused(Prefix::Blocked);

async fn opened() -> (TempDir, State) {
    let dir = tempdir().unwrap();
    let state = State::open(dir.path(), NOW).await.unwrap();
    (dir, state)
}

#[tokio::test]
async fn a_run_is_remembered_by_the_next_process() {
    let (dir, state) = opened().await;
    let notes = job("notes");
    state.begin_run(&notes, NOW).await.unwrap();
    let row = &state.job_rows().await.unwrap()[0];
    assert_eq!((row.state, row.last_attempt, row.last_success), (JobState::Idle, Some(NOW), None), "no lock is held");
    let lock = JobLock::take(dir.path(), notes.key()).unwrap();
    state.begin_run(&notes, NOW).await.unwrap();
    let row = &state.job_rows().await.unwrap()[0];
    assert_eq!((row.state, row.running, row.down), (JobState::Reconciling, true, 0));
    let note = RunNote { state: JobState::Transferring, down: 7, up: 2, bytes: 900 };
    state.note_run(notes.key(), note).await.unwrap();
    let row = &state.job_rows().await.unwrap()[0];
    assert_eq!((row.state, row.running, row.down, row.up, row.bytes), (note.state, true, 7, 2, 900));
    drop(lock);

    state.end_run(&notes, &report(Ending::Converged), true, NOW + 4).await.unwrap();
    let note = JobNote::new(&notes, Some(JobState::Idle), Some(NOW + 300));
    state.note_jobs(vec![note], true).await.unwrap();
    drop(state);

    let state = State::open(dir.path(), NOW + 10).await.unwrap();
    let expected = JobRow {
        key: notes.key().to_string(),
        peer: "community".to_owned(),
        filter: "notes".to_owned(),
        direction: "both".to_owned(),
        state: JobState::Idle,
        running: false,
        configured: true,
        last_attempt: Some(NOW),
        last_success: Some(NOW + 4),
        last_whole: Some(NOW + 4),
        down: 118,
        up: 3,
        bytes: 4321,
        duration_ms: 4120,
        last_error: None,
        failures: 0,
        next_run: Some(NOW + 300),
    };
    assert_eq!(state.job_rows().await.unwrap(), [expected]);
    let runs = state.run_rows(Some(notes.key()), 0).await.unwrap();
    assert_eq!((runs.len(), runs[0].started, runs[0].ended), (1, NOW, NOW + 4));
    assert_eq!(runs[0].report.get(), serde_json::to_string(&report(Ending::Converged)).unwrap());
    assert!(state.run_rows(Some(job("other").key()), 0).await.unwrap().is_empty());
    assert!(state.run_rows(None, NOW + 4).await.unwrap().is_empty());
}

#[tokio::test]
async fn failures_count_until_a_run_gets_through() {
    let (_dir, state) = opened().await;
    let notes = job("notes");
    for (ending, failures, word) in [
        (Ending::Failed, 1, "failed"),
        (Ending::Blocked, 2, "blocked"),
        (Ending::Interrupted, 2, "idle"),
        (Ending::Failed, 3, "failed"),
        (Ending::Partial, 0, "partial"),
        (Ending::Failed, 1, "failed"),
        (Ending::Converged, 0, "converged"),
    ] {
        state.end_run(&notes, &report(ending), false, NOW).await.unwrap();
        let row = state.job_rows().await.unwrap().remove(0);
        assert_eq!((row.failures, row.state.as_str()), (failures, word), "{ending}");
        assert_eq!(row.last_error, report(ending).error);
        assert_eq!((row.last_success, row.last_whole), ((ending == Ending::Converged).then_some(NOW), None));
    }
}

#[tokio::test]
async fn history_and_old_jobs_go() {
    let (_dir, state) = opened().await;
    for minute in 0..310 {
        state.end_run(&job("notes"), &report(Ending::Converged), true, NOW + minute).await.unwrap();
    }
    state.end_run(&job("other"), &report(Ending::Partial), true, NOW).await.unwrap();
    let runs = state.run_rows(Some(job("notes").key()), 0).await.unwrap();
    assert_eq!((runs.len(), runs[0].ended), (300, NOW + 10));
    assert_eq!(state.run_rows(None, 0).await.unwrap().len(), 301);

    state.end_run(&job("new"), &report(Ending::Partial), true, NOW + 91 * DAY).await.unwrap();
    assert_eq!(state.job_rows().await.unwrap().len(), 1);
    assert_eq!(state.run_rows(None, 0).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_daemon_says_which_jobs_it_has() {
    let (_dir, state) = opened().await;
    let note = |name| JobNote::new(&job(name), Some(JobState::Idle), Some(NOW + 30));
    state.end_run(&job("once"), &report(Ending::Converged), true, NOW).await.unwrap();
    state.note_jobs(vec![note("new"), note("old")], true).await.unwrap();
    let configured = || async {
        let rows = state.job_rows().await.unwrap();
        rows.into_iter().filter(|row| row.configured).map(|row| row.filter).collect::<Vec<_>>()
    };
    assert_eq!(configured().await, ["new", "old"]);
    let row = state.job_rows().await.unwrap().remove(0);
    assert_eq!((row.last_attempt, row.next_run), (None, Some(NOW + 30)), "{row:?}");

    // It may be long until it runs, and its row stays.
    state.end_run(&job("old"), &report(Ending::Converged), true, NOW + 91 * DAY).await.unwrap();
    assert_eq!(state.job_rows().await.unwrap().len(), 2);
    state.note_jobs(vec![JobNote::new(&job("old"), None, None)], true).await.unwrap();
    assert_eq!(configured().await, ["old"]);
    let old = state.job_rows().await.unwrap().into_iter().find(|row| row.filter == "old").unwrap();
    assert_eq!((old.state, old.next_run), (JobState::Converged, None), "what is not said stays");
    state.note_jobs(vec![note("new")], false).await.unwrap();
    assert_eq!(configured().await, ["new", "old"]);
}

#[tokio::test]
async fn what_moved_is_summed_by_the_hour() {
    let (_dir, state) = opened().await;
    let hour = NOW / 3600 * 3600;
    for ended in [hour - 1, hour, hour + 3599, hour + 7200] {
        state.end_run(&job("notes"), &report(Ending::Partial), true, ended).await.unwrap();
    }
    let row = |start, runs: u64| HourRow { start, down: runs * 118, up: runs * 3 };
    assert_eq!(state.moved_per_hour(hour).await.unwrap(), [row(hour, 2), row(hour + 7200, 1)]);
    assert_eq!(state.moved_per_hour(hour - 1).await.unwrap()[0], row(hour - 3600, 1));
}

#[tokio::test]
async fn status_is_one_object() {
    let (_dir, state) = opened().await;
    assert_eq!(state.status(None, NOW).await.unwrap(), StatusView::default());
    state.end_run(&job("notes"), &report(Ending::Failed), true, NOW).await.unwrap();
    state.park(&relay("wss://here.example"), "", facts(0..2, BLOCKED), NOW, 1000).await.unwrap();
    let json = serde_json::to_value(state.status(None, NOW).await.unwrap()).unwrap();
    assert_eq!(json["jobs"][0]["last_error"], "relay.example: connection refused");
    let parked = serde_json::json!([{"destination": "wss://here.example", "reason": "refused:blocked", "count": 2}]);
    assert_eq!(json["parked"], parked);
}

#[tokio::test]
async fn a_fact_holds_in_its_scope_and_for_its_time() {
    let (_dir, state) = opened().await;
    let (here, there) = (relay("wss://here.example"), relay("wss://there.example"));
    let (source, key) = (relay("wss://source.example"), job("notes").key());
    let excluded = ParkReason::Skipped(Skip::Excluded);
    for (n, reason) in [(1, BLOCKED), (2, ParkReason::Vanished), (3, excluded), (4, ParkReason::Early)] {
        state.park(&here, &scope(reason, &source, key), facts(n..n + 1, reason), NOW, 1000).await.unwrap();
    }
    let parked = async |dst: &RelayUrl, scopes: &[String], now| {
        let mut found: Vec<_> =
            state.parked(dst, scopes, (0..9).map(id).collect(), now).await.unwrap().into_iter().collect();
        found.sort_by_key(|id| id.as_bytes()[31]);
        found.iter().map(|id| id.as_bytes()[31]).collect::<Vec<_>>()
    };
    let scopes = [source.to_string(), key.to_string()];
    assert_eq!(parked(&here, &scopes, NOW).await, [1, 2, 3, 4]);
    assert_eq!(parked(&here, &scopes[..1], NOW).await, [1, 2, 4], "another job");
    assert_eq!(parked(&here, &scopes[1..], NOW).await, [1, 3, 4], "another source");
    assert_eq!(parked(&there, &scopes, NOW).await, [0; 0], "another destination");
    assert_eq!(parked(&here, &scopes, NOW + 30 * 60).await, [1, 2, 3], "half an hour later");
    assert_eq!(parked(&here, &scopes, NOW + DAY).await, [1, 3], "a day later");
    assert_eq!(parked(&here, &scopes, NOW + 7 * DAY).await, [0; 0], "a week later");

    let rows = state.list_parked(Some(&here), NOW, 3).await.unwrap();
    let words: Vec<_> = rows.iter().map(|row| (row.reason.as_str(), row.until - NOW)).collect();
    assert_eq!(words.len(), 3);
    assert_eq!(words[2], ("vanished", DAY), "{words:?}");
    assert_eq!(
        state.parked_counts().await.unwrap(),
        [
            count(&here, "early", 1),
            count(&here, "refused:blocked", 1),
            count(&here, "skipped:excluded", 1),
            count(&here, "vanished", 1),
        ]
    );
}

#[tokio::test]
async fn what_expired_is_pruned_when_the_state_is_opened_and_after_runs() {
    let (dir, state) = opened().await;
    let dst = relay("wss://here.example");
    state.park(&dst, "", facts(0..10, ParkReason::Vanished), NOW, 1000).await.unwrap();
    state.park(&dst, "", facts(5..8, BLOCKED), NOW, 1000).await.unwrap();
    assert_eq!(
        state.parked_counts().await.unwrap(),
        [count(&dst, "vanished", 7), count(&dst, "refused:blocked", 3),],
        "a newer fact replaces the older"
    );
    state.end_run(&job("notes"), &report(Ending::Converged), true, NOW + DAY).await.unwrap();
    assert_eq!(state.parked_counts().await.unwrap(), [count(&dst, "refused:blocked", 3)]);
    drop(state);
    let state = State::open(dir.path(), NOW + 8 * DAY).await.unwrap();
    assert!(state.parked_counts().await.unwrap().is_empty());
}

#[tokio::test]
async fn those_that_expire_first_make_room() {
    let (_dir, state) = opened().await;
    let (dst, other) = (relay("wss://here.example"), relay("wss://other.example"));
    state.park(&other, "", facts(0..50, ParkReason::Early), NOW, 100).await.unwrap();
    state.park(&dst, "", facts(0..90, BLOCKED), NOW, 100).await.unwrap();
    state.park(&dst, "", facts(90..130, ParkReason::Vanished), NOW, 100).await.unwrap();
    let parked = state.parked(&dst, &[], (0..130).map(id).collect(), NOW).await.unwrap();
    assert_eq!(parked.len(), 100);
    assert!((0..90).all(|n| parked.contains(&id(n))));

    assert_eq!(state.forget_parked(Some(&dst)).await.unwrap(), 100);
    assert_eq!(state.parked_counts().await.unwrap(), [count(&other, "early", 50)]);
    assert_eq!(state.forget_parked(None).await.unwrap(), 50);
    assert!(state.parked_counts().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_capability_is_believed_for_its_time() {
    let (_dir, state) = opened().await;
    let relay = relay("wss://relay.example");
    let no = Capability { verdict: "no".to_owned(), strikes: 1, until: NOW + DAY };
    state.set_capability(&relay, "nip77", Capability { strikes: 0, ..no.clone() }).await.unwrap();
    state.set_capability(&relay, "nip77", no.clone()).await.unwrap();
    assert_eq!(state.capability(&relay, "nip77", NOW).await.unwrap(), Some(no));
    assert_eq!(state.capability(&relay, "nip77", NOW + DAY).await.unwrap(), None);
    assert_eq!(state.capability(&relay, "count", NOW).await.unwrap(), None);
}

#[tokio::test]
async fn processes_share_the_file() {
    let dir = tempdir().unwrap();
    // All of them find no file: one makes it, the others wait for it.
    let open = || State::open(dir.path(), NOW);
    let states = futures::future::try_join_all((0..8).map(|_| open())).await.unwrap();
    let status = State::open_read_only(dir.path()).await.unwrap();
    let dst = relay("wss://here.example");
    let parks = states.iter().zip(0..).map(|(state, n)| {
        let dst = &dst;
        async move {
            for batch in (n * 1000..(n + 1) * 1000).step_by(100) {
                state.park(dst, "", facts(batch..batch + 100, BLOCKED), NOW, 1_000_000).await?;
            }
            state.end_run(&job("notes"), &report(Ending::Converged), true, NOW).await
        }
    });
    futures::future::try_join_all(parks).await.unwrap();
    assert_eq!(status.parked_counts().await.unwrap(), [count(&dst, "refused:blocked", 8000)]);
    assert_eq!(status.job_rows().await.unwrap().len(), 1);

    let error = status.begin_run(&job("notes"), NOW).await.unwrap_err();
    assert!(matches!(error, StateError::ReadOnly { .. }), "{error}");
}

#[tokio::test]
async fn a_full_disk_costs_what_was_not_written_and_nothing_else() {
    let dir = tempdir().unwrap();
    let state = State::start(dir.path(), |dir| {
        let db = schema::open(dir)?;
        db.pragma_update(None, "max_page_count", 40).unwrap();
        Ok(db)
    })
    .await
    .unwrap();
    let dst = relay("wss://here.example");
    state.begin_run(&job("notes"), NOW).await.unwrap();
    state.park(&dst, "", facts(0..10, BLOCKED), NOW, 100_000).await.unwrap();
    let error = state.park(&dst, "", facts(10..5000, BLOCKED), NOW, 100_000).await.unwrap_err();
    assert!(matches!(error, StateError::Full { .. }), "{error}");
    let file = dir.path().join("tieline.db");
    assert_eq!(
        error.to_string(),
        format!("{}: no room left to write: free some, or name another directory with --state-dir", file.display())
    );

    assert_eq!(state.parked(&dst, &[], (0..5000).map(id).collect(), NOW).await.unwrap().len(), 10);
    assert_eq!(state.parked_counts().await.unwrap(), [count(&dst, "refused:blocked", 10)]);
    assert_eq!(state.job_rows().await.unwrap().len(), 1);
    assert_eq!(state.forget_parked(None).await.unwrap(), 10);
    state.park(&dst, "", facts(0..5, BLOCKED), NOW, 100_000).await.expect("there is room again");
}

#[tokio::test]
async fn a_state_that_cannot_be_opened_says_what_to_do() {
    let dir = tempdir().unwrap();
    let place = |name: &str| {
        let place = dir.path().join(name);
        fs::create_dir(&place).unwrap();
        place
    };
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let corrupt = place("corrupt");
    fs::write(corrupt.join("tieline.db"), "not a database, but something that a person wrote ".repeat(100)).unwrap();
    let damaged = place("damaged");
    drop(State::open(&damaged, NOW).await.unwrap());
    let newer = place("newer");
    let db = rusqlite::Connection::open(newer.join("tieline.db")).unwrap();
    db.pragma_update(None, "user_version", 99).unwrap();
    drop(db);
    let folder = place("folder");
    fs::create_dir(folder.join("tieline.db")).unwrap();

    let error = async |dir: &Path| State::open(dir, NOW).await.unwrap_err();
    for (dir, part) in [
        (file.as_path(), "file: not a directory: name another with --state-dir"),
        (&file.join("below"), "file/below: not a directory: name another with --state-dir"),
        (
            &corrupt,
            "tieline.db: not a state file, or a damaged one: move the file away: it costs time, never correctness",
        ),
        (
            &newer,
            "tieline.db: its layout is version 99 and this tieline knows version 2: run the version of tieline that",
        ),
        (&folder, "tieline.db: "),
    ] {
        let error = error(dir).await.to_string();
        assert!(error.contains(part), "{error}");
        assert!(error.contains("--state-dir") || error.contains("move the file away"), "{error}");
    }
    for (dir, part) in [(dir.path(), "no state here"), (&corrupt, "not a state file"), (&newer, "version 99")] {
        let error = State::open_read_only(dir).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(!dir.path().join("tieline.db").exists(), "looking makes nothing");
}

#[tokio::test]
#[ignore = "a measurement: cargo test --release --lib state -- --ignored --nocapture measure"]
async fn measure_a_million_parked_ids() {
    let (dir, state) = opened().await;
    let dst = relay("wss://relay.community.example");
    let timed = |what: &str, start: std::time::Instant| println!("{what}: {:?}", start.elapsed());

    let start = crate::clock::instant();
    for batch in (0..1_000_000).step_by(500) {
        state.park(&dst, "", facts(batch..batch + 500, BLOCKED), NOW, 1_000_000).await.unwrap();
    }
    timed("park 1,000,000 in batches of 500", start);
    println!("file: {} MB", fs::metadata(dir.path().join("tieline.db")).unwrap().len() >> 20);
    for (what, from, step) in [("there", 0, 5), ("not there", 1_000_000, 1)] {
        let ids = (0..200_000).map(|n| id(from + n * step)).collect();
        let start = crate::clock::instant();
        let found = state.parked(&dst, &[], ids, NOW).await.unwrap().len();
        timed(&format!("look up 200,000 ids that are {what} ({found})"), start);
    }
    let ids = (0..200_000).map(id).collect();
    let start = crate::clock::instant();
    state.parked(&relay("wss://other.example"), &[], ids, NOW).await.unwrap();
    timed("look up 200,000 ids where none are parked", start);
    let start = crate::clock::instant();
    state.park(&dst, "", facts(2_000_000..2_000_500, ParkReason::Vanished), NOW, 1_000_000).await.unwrap();
    timed("park 500 where there is no room", start);
    let start = crate::clock::instant();
    state.end_run(&job("notes"), &report(Ending::Converged), true, NOW + 30 * DAY).await.unwrap();
    timed("prune 1,000,000", start);
}
