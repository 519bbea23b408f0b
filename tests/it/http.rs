//! What the daemon tells over HTTP, asked for over a real socket and looked at in a real browser.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tieline::health::Connections;
use tieline::health::Status;
use tieline::job_spec::{Direction, JobSpec, Limits, RelativeTime, Side, StrategyChoice};
use tieline::job_state::JobState;
use tieline::metrics::Metrics;
use tieline::nostr::{EventId, Prefix};
use tieline::outcome::{Ending, Moved, ParkReason, Report};
use tieline::state::{DaemonLock, JobLock, JobNote, RunNote, State};
use tieline::{clock, http};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

const SCRIPT: &str = "<script>document.title='owned'</script>";

struct Served {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Served {
    async fn start(state: Option<State>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, metrics, stop) =
            (listener.local_addr().unwrap(), Arc::new(Metrics::new()), CancellationToken::new());
        let task = tokio::spawn(http::serve(listener, metrics.clone(), state, stop.clone()));
        Self { address, metrics, stop, task }
    }

    /// Sends the text as it is, and returns head and body.
    async fn send(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut answer = Vec::new();
        // A request that is too large is cut off in the middle.
        let _ = stream.write_all(request.as_bytes()).await;
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        (head.to_lowercase(), body.to_owned())
    }

    async fn ask(&self, method: &str, path: &str) -> (String, String) {
        self.send(&format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
    }

    async fn get(&self, path: &str) -> (String, String) {
        self.ask("GET", path).await
    }
}

fn job(peer: &str, name: &str, direction: Direction) -> JobSpec {
    JobSpec {
        peer: peer.to_owned(),
        name: name.to_owned(),
        local_url: "ws://127.0.0.1:7777".parse().unwrap(),
        peer_url: "wss://relay.example".parse().unwrap(),
        filter: format!("{{\"#t\":[\"{}\"]}}", name.replace('"', "")).parse().unwrap(),
        relative: RelativeTime::default(),
        direction,
        strategy: StrategyChoice::Auto,
        exclude: Vec::new(),
        limits: Limits::default(),
    }
}

fn report(job: &JobSpec, outcome: Ending, (down, up): (u64, u64), error: Option<&str>) -> Report {
    let moved = |stored| Moved { stored, ..Moved::default() };
    let mut report = Report::unstarted(job, outcome, String::new());
    (report.downloaded, report.uploaded) = (moved(down), moved(up));
    (report.error, report.duration_ms) = (error.map(str::to_owned), 100 + 37 * (down + up));
    report.bytes_received.local = 700 * (down + up) + 230;
    report
}

/// A state with one job in trouble, whose name is a script.
async fn troubled() -> (TempDir, State) {
    let dir = tempfile::tempdir().unwrap();
    let now = clock::now();
    let state = State::open(dir.path(), now).await.unwrap();
    let job = job("community", SCRIPT, Direction::Both);
    let failed = report(&job, Ending::Failed, (2, 1), Some("community: \"refused\" <img src=x onerror=alert(1)>"));
    state.end_run(&job, &failed, false, now - 60).await.unwrap();
    let parked = vec![(EventId::new([1; 32]), ParkReason::Refused(Prefix::Blocked))];
    state.park(&job.peer_url, "", parked, now, 10).await.unwrap();
    (dir, state)
}

#[tokio::test]
async fn each_route_answers_and_is_only_read() {
    let (_dir, state) = troubled().await;
    let served = Served::start(Some(state.clone())).await;
    let refused = Connections { failures: 3, ..Connections::default() };
    served.metrics.relay("community", &refused, &Connections::default(), Status::Dead, 3);

    let (head, body) = served.get("/healthz").await;
    assert!(head.starts_with("http/1.1 200"), "a dead peer is no fault of ours: {head}");
    assert_eq!(body, "ok");

    let (head, body) = served.get("/metrics").await;
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(body.contains("tieline_relay_status{relay=\"community\"} 5\n") && body.ends_with("# EOF\n"), "{body}");

    let (head, body) = served.get("/status").await;
    assert!(head.starts_with("http/1.1 200") && head.contains("content-type: application/json"), "{head}");
    let status: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, serde_json::to_value(state.status(None, clock::now()).await.unwrap()).unwrap());
    assert_eq!((&status["jobs"][0]["state"], &status["parked"][0]["count"]), (&"failed".into(), &1.into()));

    let (head, page) = served.get("/").await;
    assert!(head.contains("content-type: text/html; charset=utf-8"), "{head}");
    assert!(head.contains("content-security-policy: default-src 'none'; style-src 'self';"), "{head}");
    for part in ["refused:blocked", "wss://relay.example", ">dead<", "<svg"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(served.get("/style.css").await.1, include_str!("../../src/http/style.css"));

    let (head, body) = served.ask("HEAD", "/").await;
    assert!(head.starts_with("http/1.1 200") && body.is_empty(), "{head} {body}");
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        let (head, _) = served.ask(method, "/status").await;
        assert!(head.starts_with("http/1.1 405") && head.contains("allow: get,head"), "{method}: {head}");
    }
    assert!(served.get("/jobs").await.0.starts_with("http/1.1 404"));
}

#[tokio::test]
async fn names_and_errors_stay_text() {
    let (_dir, state) = troubled().await;
    let served = Served::start(Some(state)).await;
    let (_, page) = served.get("/").await;
    assert!(page.contains("&lt;script&gt;document.title=&#39;owned&#39;&lt;/script&gt;"), "{page}");
    assert!(page.contains("community: &quot;refused&quot; &lt;img src=x"), "{page}");
    for tag in ["<script", "<img", "javascript:", "http://", "https://", "style="] {
        assert!(!page.contains(tag), "{tag}: {page}");
    }
}

#[tokio::test]
async fn without_a_state_the_process_is_still_well() {
    let served = Served::start(None).await;
    assert_eq!(served.get("/healthz").await.1, "ok");
    let (head, body) = served.get("/status").await;
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert_eq!(body, r#"{"error":"this process keeps no state"}"#);
    let (head, page) = served.get("/").await;
    assert!(head.starts_with("http/1.1 200") && page.contains("Jobs are not shown: this process keeps no state"));
}

#[tokio::test]
async fn a_client_takes_no_more_than_a_page_needs() {
    let served = Served::start(None).await;
    let (head, _) = served.send(&format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20))).await;
    assert!(!head.starts_with("http/1.1 200"), "{head}");
    let body = "x".repeat(1 << 20);
    let (head, _) = served.send(&format!("GET /healthz HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", 1 << 30)).await;
    assert!(head.starts_with("http/1.1 200") || head.is_empty(), "{head}");

    // Those that say nothing leave room for no more than they are.
    let mut silent = Vec::new();
    for _ in 0..63 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    assert_eq!(served.get("/healthz").await.1, "ok");

    served.stop.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(5), served.task).await;
    ended.expect("silent clients do not hold it up").unwrap().unwrap();
}

#[tokio::test]
async fn a_browser_shows_the_page_and_runs_nothing() {
    let Some(chromium) = chromium() else {
        println!("skipped: no chromium is installed");
        return;
    };
    let (_dir, state, _locks) = busy().await;
    let served = Served::start(Some(state)).await;
    // Streams begin after it.
    served.get("/healthz").await;
    stream(&served.metrics);
    let url = format!("http://{}/", served.address);
    let dom = browse(&chromium, &["--dump-dom", &url]).await;
    assert!(dom.contains("<title>Tieline: 2 in trouble</title>"), "no script ran: {dom}");
    assert!(dom.contains("1 live") || dom.contains("500 live: half within 50 ms"), "{dom}");
    assert!(dom.contains(">&lt;script&gt;document.title='owned'&lt;/script&gt;</td>"), "{dom}");
    for part in ["transferring", "under way", ">321<", "never-ran-yet"] {
        assert!(dom.contains(part), "{part}: {dom}");
    }

    let shots = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (name, size, scheme) in
        [("light.png", "1280,1500", "1"), ("dark.png", "1280,1500", "0"), ("phone.png", "500,2000", "1")]
    {
        let file = shots.join(name);
        let _ = std::fs::remove_file(&file);
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
        let (shot, size) = (format!("--screenshot={}", file.display()), format!("--window-size={size}"));
        browse(&chromium, &[&shot, &size, &scheme, "--hide-scrollbars", &url]).await;
        let bytes = std::fs::metadata(&file).unwrap().len();
        assert!(bytes > 20_000, "{} is {bytes} bytes: an empty page?", file.display());
        println!("{}", file.display());
    }
}

/// A day of a sidecar with something of everything.
async fn busy() -> (TempDir, State, (DaemonLock, JobLock)) {
    let (dir, state) = troubled().await;
    let now = clock::now();
    let jobs = [
        (job("community", "notes", Direction::Both), Ending::Converged, None),
        (job("community", "wallets", Direction::Both), Ending::Converged, None),
        (job("archive.example", "everything-of-ours", Direction::Push), Ending::Partial, None),
        (
            job("paid.example", "inbox", Direction::Pull),
            Ending::Blocked,
            Some("paid.example: auth-required: we only serve members"),
        ),
        (job("git.example", "announcements", Direction::Pull), Ending::Converged, None),
    ];
    for (index, (job, outcome, error)) in (0..).zip(&jobs) {
        for hour in 0..24_u64 {
            let wave = (hour * 7 + index * 5) % 11;
            let (down, up) = (wave * wave * 9, if index % 2 == 0 { wave * 37 } else { 0 });
            let moved = if *outcome == Ending::Blocked { (0, 0) } else { (down, up) };
            let at = now - (23 - hour) * 3600 - 120 * index;
            state.end_run(job, &report(job, *outcome, moved, *error), true, at).await.unwrap();
        }
        let note = JobNote::new(job, Some(JobState::after(*outcome)), Some(now + 180 + index * 40));
        state.note_jobs(vec![note], false).await.unwrap();
    }
    let fresh = job("git.example", "never-ran-yet", Direction::Pull);
    let trouble = job("community", SCRIPT, Direction::Both);
    let notes = [(fresh, JobState::Idle), (trouble, JobState::Failed)];
    let notes = notes.map(|(job, state)| JobNote::new(&job, Some(state), Some(now + 20)));
    state.note_jobs(notes.into(), false).await.unwrap();
    let running = jobs[1].0.key();
    state.begin_run(&jobs[1].0, now - 3).await.unwrap();
    let locks = (DaemonLock::take(dir.path()).unwrap(), JobLock::take(dir.path(), running).unwrap());
    let so_far = RunNote { state: JobState::Transferring, down: 321, up: 4, bytes: 200_000 };
    state.note_run(running, so_far).await.unwrap();
    let archive = "wss://archive.example".parse().unwrap();
    for (count, reason) in [(120_u8, ParkReason::Refused(Prefix::Blocked)), (31, ParkReason::Vanished)] {
        let ids = (0..count).map(|n| (EventId::new([n.wrapping_add(count); 32]), reason)).collect();
        state.park(&archive, "", ids, now, 1000).await.unwrap();
    }
    (dir, state, locks)
}

/// Relays in every condition, and live events of various lags.
fn stream(metrics: &Metrics) {
    for (name, connected, status, failures) in [
        ("local", true, Status::Healthy, 0),
        ("community", true, Status::Healthy, 0),
        ("archive.example", true, Status::RateLimited, 0),
        ("paid.example", false, Status::Disconnected, 4),
        ("git.example", false, Status::Healthy, 0),
    ] {
        let view = Connections { connected, ..Connections::default() };
        metrics.relay(name, &view, &Connections::default(), status, failures);
    }
    for n in 0..500 {
        let from = if n % 3 == 0 { Side::Local } else { Side::Peer };
        metrics.passed(
            "community",
            from,
            tieline::outcome::Outcome::Stored,
            Duration::from_millis(n % 50 * n / 100 + 2),
        );
    }
}

/// The browser, which has to be there where it is named.
fn chromium() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("TIELINE_TEST_CHROMIUM").map(PathBuf::from) {
        assert!(named.is_file(), "{} is not there", named.display());
        return Some(named);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("chromium")).find(|file| file.is_file())
}

async fn browse(chromium: &Path, arguments: &[&str]) -> String {
    let profile = tempfile::tempdir().unwrap();
    let run = tokio::process::Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(arguments)
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(90), run).await.expect("chromium ends").unwrap();
    String::from_utf8(output.stdout).unwrap()
}
