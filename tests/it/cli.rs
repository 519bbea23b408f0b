//! The built program: what it prints and where, how it exits, and what it never says.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nostr::nips::nip19::ToBech32;
use serde_json::{Value, json};
use tieline::config::filter_from_json;
use tieline::job_spec::{Direction, JobSpec, Limits, RelativeTime, StrategyChoice};
use tieline::state::{JobLock, State};

use crate::support::cli::{Cli, Output};
use crate::support::client::Client;
use crate::support::events::{Author, EPOCH, now};
use crate::support::files::bytes_below;
use crate::support::model::{Auth, ModelRelay, Neg, Quirks, Verdict};

const NOTES: &str = r#"{"kinds":[1]}"#;
/// The keys of a report, as DESIGN.md has them.
const REPORT: [&str; 18] = [
    "bodies_received",
    "bytes_received",
    "bytes_sent",
    "direction",
    "downloaded",
    "duration_ms",
    "error",
    "filter",
    "gaps",
    "local_only",
    "negentropy_rounds",
    "outcome",
    "parked",
    "passes",
    "peer",
    "peer_only",
    "strategy",
    "uploaded",
];

/// Two relays: three notes here, three there, and three in both.
struct Pair {
    local: ModelRelay,
    peer: ModelRelay,
}

impl Pair {
    async fn start() -> Self {
        let pair = Self {
            local: ModelRelay::start(Quirks::default()).await,
            peer: ModelRelay::start(Quirks::default()).await,
        };
        let notes = Author::new(1).notes(9, EPOCH);
        pair.local.fill(&notes[..6]);
        pair.peer.fill(&notes[3..]);
        pair
    }

    /// `sync` with the two URLs and this.
    async fn sync(&self, cli: &Cli, more: &[&str]) -> Output {
        let arguments = ["sync", self.local.url(), self.peer.url(), "--filter", NOTES];
        cli.run(&[&arguments[..], more].concat()).await
    }

    /// A config of two jobs at this peer, and of one at another that is down.
    fn config(&self) -> String {
        format!(
            "local: {{url: '{}'}}
peers:
- {{name: up, url: '{}', direction: both, filters: [
    {{name: notes, filter: {NOTES}}}, {{name: likes, direction: pull, filter: {{kinds: [7]}}}}]}}
- {{name: down, url: 'ws://127.0.0.1:1', direction: pull, filters: [{{name: notes, filter: {NOTES}}}]}}
",
            self.local.url(),
            self.peer.url()
        )
    }

    fn counts(&self) -> (usize, usize) {
        (self.local.ids(&json!({})).len(), self.peer.ids(&json!({})).len())
    }
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn outcomes(output: &Output) -> BTreeSet<String> {
    let line =
        |report: &Value| format!("{}/{} {}", report["peer"], report["filter"], report["outcome"]).replace('"', "");
    output.json_lines().iter().map(line).collect()
}

#[tokio::test]
async fn json_is_one_object_a_job_with_the_keys_of_the_design() {
    let pair = Pair::start().await;
    let output = pair.sync(&Cli::new(), &["--direction", "both", "--json"]).await;
    assert_eq!((output.code, pair.counts()), (0, (9, 9)), "{output:#?}");
    let [report] = &output.json_lines()[..] else { panic!("{output:#?}") };
    let moved = ["downloaded", "uploaded"].map(|way| &report[way]);
    assert_eq!(keys(report), BTreeSet::from(REPORT));
    for counts in moved {
        assert_eq!(keys(counts), BTreeSet::from(["stored", "duplicate", "refused", "skipped", "vanished", "failed"]));
        assert_eq!(counts["stored"], 3);
    }
    for bytes in ["bytes_sent", "bytes_received"] {
        assert_eq!(keys(&report[bytes]), BTreeSet::from(["local", "peer"]));
        assert!(report[bytes]["peer"].as_u64().unwrap() > 0);
    }
    assert_eq!(report["peer"], pair.peer.url());
    assert_eq!((&report["direction"], &report["strategy"]), (&json!("both"), &json!("mediated")));
    assert_eq!(
        (&report["outcome"], &report["passes"], &report["error"]),
        (&json!("converged"), &json!(2), &Value::Null)
    );
    assert_eq!((&report["local_only"], &report["peer_only"], &report["parked"]), (&json!(3), &json!(3), &json!(0)));
    assert_eq!((&report["bodies_received"], &report["gaps"]), (&json!(6), &json!([])));
}

#[tokio::test]
async fn the_direction_is_pull_unless_said() {
    for (direction, after) in [(None, (9, 6)), (Some("pull"), (9, 6)), (Some("push"), (6, 9)), (Some("both"), (9, 9))] {
        let pair = Pair::start().await;
        let more: Vec<&str> = direction.into_iter().flat_map(|direction| ["--direction", direction]).collect();
        let output = pair.sync(&Cli::new(), &more).await;
        assert_eq!((output.code, pair.counts()), (0, after), "{direction:?}");
        assert!(output.stdout.contains("converged") && output.stdout.contains("3 / 3"), "{}", output.stdout);
    }
}

#[tokio::test]
async fn a_dry_run_moves_nothing_and_can_list_the_ids() {
    let pair = Pair::start().await;
    let cli = Cli::new();
    let output = pair.sync(&cli, &["--direction", "both", "--dry-run", "--json"]).await;
    let report = &output.json_lines()[0];
    assert_eq!((output.code, &report["outcome"], pair.counts()), (0, &json!("dry-run"), (6, 6)));
    assert_eq!((&report["local_only"], &report["peer_only"]), (&json!(3), &json!(3)));
    let nothing = json!({"stored": 0, "duplicate": 0, "refused": {}, "skipped": {}, "vanished": 0, "failed": 0});
    assert_eq!((&report["downloaded"], &report["uploaded"]), (&nothing, &nothing));
    assert!(report.get("local_only_ids").is_none());

    let output = pair.sync(&cli, &["--dry-run", "--json", "--ids"]).await;
    let report = &output.json_lines()[0];
    let ids = |key: &str| -> BTreeSet<String> { serde_json::from_value(report[key].clone()).unwrap() };
    let (local, peer) = (pair.local.ids(&json!({})), pair.peer.ids(&json!({})));
    assert_eq!(ids("local_only_ids"), local.difference(&peer).cloned().collect());
    assert_eq!(ids("peer_only_ids"), peer.difference(&local).cloned().collect());
    assert_eq!(pair.local.offered().len() + pair.peer.offered().len(), 0);
    assert_eq!(pair.sync(&cli, &["--ids"]).await.code, 2, "--ids is for --dry-run --json");
}

#[tokio::test]
async fn with_a_config_all_jobs_run_or_those_that_are_named() {
    let pair = Pair::start().await;
    let cli = Cli::with_config(&pair.config());
    let rows: [(&[&str], i32, &[&str]); 6] = [
        (&[], 3, &["down/notes failed", "up/likes converged", "up/notes converged"]),
        (&["--peer", "up"], 0, &["up/likes converged", "up/notes converged"]),
        (&["--filter", "likes"], 0, &["up/likes converged"]),
        (&["--filter", "notes", "--peer", "up"], 0, &["up/notes converged"]),
        (&["--peer", "down", "--peer", "up", "--filter", "likes"], 0, &["up/likes converged"]),
        (&["--peer", "up", "--dry-run"], 0, &["up/likes dry-run", "up/notes dry-run"]),
    ];
    for (chosen, code, expected) in rows {
        let output = cli.run(&[&["sync", "--json"], chosen].concat()).await;
        assert_eq!(output.code, code, "{chosen:?} {output:#?}");
        assert_eq!(outcomes(&output), expected.iter().map(|line| (*line).to_owned()).collect(), "{chosen:?}");
    }
    assert_eq!(pair.counts(), (9, 9));
    // Whatever was configured.
    pair.peer.fill(&Author::new(2).notes(1, EPOCH));
    let output = cli.run(&["sync", "--peer", "up", "--filter", "notes", "--direction", "push", "--json"]).await;
    assert_eq!((output.code, &output.json_lines()[0]["peer_only"], pair.counts()), (0, &json!(1), (9, 10)));
}

#[tokio::test]
async fn what_is_typed_wrongly_is_said() {
    let pair = Pair::start().await;
    let cli = Cli::with_config(&pair.config());
    let (local, peer) = (pair.local.url(), pair.peer.url());
    let rows: [(&[&str], &str); 17] = [
        (&["sync", "--peer", "nobody"], "--peer nobody: the config has no such peer"),
        (&["sync", "--filter", "nothing"], "--filter nothing: the config has no filter of this name"),
        (&["sync", "--filter", NOTES], "a JSON filter needs two relay URLs"),
        (&["sync", "--peer", "down", "--filter", "likes"], "nothing to do"),
        (&["sync", local], "<PEER_URL>"),
        (&["sync", local, peer], "--filter"),
        (&["sync", local, local, "--filter", NOTES], "is both relays"),
        (&["sync", local, &format!("{}/", local.to_uppercase().replace("WS", "ws")), "--filter", NOTES], "both relays"),
        (&["sync", local, peer, "--peer", "up", "--filter", NOTES], "cannot be used with"),
        (&["sync", local, peer, "--filter", r#"{"limit":5}"#], "limit: `limit` cannot be used"),
        (&["sync", local, peer, "--filter", r#"{"kinds":[]}"#], "this list is empty"),
        (&["sync", local, peer, "--filter", r#"{"kindz":[1]}"#], "did you mean `kinds`?"),
        (&["sync", local, peer, "--filter", "notes"], "expected a NIP-01 filter as JSON"),
        (&["sync", "http://127.0.0.1", peer, "--filter", NOTES], "expected a ws:// or wss:// URL"),
        (&["sync", local, peer, "--filter", NOTES, "--direction", "sideways"], "possible values: pull, push, both"),
        (&["frobnicate"], "unrecognized subcommand"),
        (&["-q", "-v", "check"], "cannot be used with"),
    ];
    for (arguments, message) in rows {
        let output = cli.run(arguments).await;
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{arguments:?} {output:#?}");
        assert!(
            output.stderr.contains("error: ") && output.stderr.contains(message),
            "{arguments:?} {}",
            output.stderr
        );
        assert!(!output.stderr.contains("panicked"));
    }
    assert_eq!(pair.counts(), (6, 6));
}

#[tokio::test]
async fn no_config_at_all_is_said() {
    let output = Cli::new().run(&["sync"]).await;
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("no config file") && output.stderr.contains("./peers.yaml"), "{}", output.stderr);
    // The one beside is found.
    let cli = Cli::new();
    cli.write("peers.yaml", "local: {url: 'ws://127.0.0.1:1'}\n");
    let output = cli.run(&["check"]).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "./peers.yaml: good: 0 peers, 0 jobs\n"));
    let output = cli.run(&["sync"]).await;
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("nothing to do"), "{}", output.stderr);
    let output = cli.run(&["--config", "missing.yaml", "check"]).await;
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("cannot read missing.yaml"), "{}", output.stderr);
}

#[tokio::test]
async fn a_bad_config_is_told_line_by_line() {
    let text = "\
local:
  ulr: ws://127.0.0.1:7777
peers:
  - name: a
    url: https://relay.example
    direction: bothh
    filters:
      - {limit: 5, kinds: [1, 70000]}
";
    let expected = "\
peers.yaml:2:3: local.ulr: unknown key `ulr`, did you mean `url`?
peers.yaml:5:10: peers[0].url: expected a ws:// or wss:// URL, found scheme \"https\"
peers.yaml:6:16: peers[0].direction: expected pull, push or both, did you mean `both`?
peers.yaml:8:10: peers[0].filters[0].limit: `limit` cannot be used: a comparison covers all matching events
peers.yaml:8:31: peers[0].filters[0].kinds[1]: expected a whole number, 0 to 65535
";
    let cli = Cli::new();
    cli.write("peers.yaml", text);
    let output = cli.run(&["--config", "peers.yaml", "check"]).await;
    assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (2, expected, ""));
    let output = cli.run(&["--config", "peers.yaml", "sync", "--json"]).await;
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    assert_eq!(output.stderr, format!("error: {expected}"));
    let output = cli.run(&["--config", "peers.yaml", "check", "--json"]).await;
    let report = &output.json_lines()[0];
    assert_eq!((output.code, report["errors"].as_array().unwrap().len()), (2, 5));
    assert_eq!(
        report["errors"][0],
        json!({"file": "peers.yaml", "line": 2, "column": 3, "path": "local.ulr",
            "message": "unknown key `ulr`, did you mean `url`?"})
    );
    assert_eq!(keys(report), BTreeSet::from(["errors", "file", "warnings"]));
}

#[tokio::test]
async fn warnings_alone_are_no_failure() {
    let cli = Cli::new();
    let key = Author::new(1).pubkey();
    cli.write(
        "peers.yaml",
        &format!(
            "local: {{url: 'ws://localhost:7777'}}\npeers:\n- name: a\n  url: ws://127.0.0.1:7777\n  direction: pull\n  \
             filters:\n  - authors: ['{key}']\n    kinds: [1]\n"
        ),
    );
    let output = cli.run(&["check"]).await;
    assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{output:#?}");
    assert_eq!(
        output.stdout,
        "./peers.yaml:4:8: peers[0].url: this peer is the local relay (warning)
./peers.yaml:7:5: peers[0].filters[0]: `kinds` has no 5: deletions by these authors will not travel (warning)
./peers.yaml:7:5: peers[0].filters: every filter names authors and none has `#p`: what others send to them will not travel (warning)
./peers.yaml: good: 1 peers, 1 jobs
"
    );
    let output = cli.run(&["check", "--json"]).await;
    let report = &output.json_lines()[0];
    assert_eq!((output.code, &report["errors"], &report["relays"]), (0, &json!([]), &json!([])));
    assert_eq!(report["warnings"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn check_probes_the_relays_when_asked_to() {
    let pair = Pair::start().await;
    let cli = Cli::with_config(&pair.config());
    let output = cli.run(&["check", "--probe", "--json"]).await;
    let report = &output.json_lines()[0];
    assert_eq!(output.code, 3, "a peer is down");
    let reachable: Vec<_> = report["relays"].as_array().unwrap().iter().map(|relay| &relay["reachable"]).collect();
    assert_eq!(reachable, [&json!(true), &json!(true), &json!(false)]);
    let output = cli.run(&["check", "--probe"]).await;
    assert_eq!(output.code, 3);
    assert!(output.stdout.contains("good: 2 peers, 3 jobs") && output.stdout.contains("unreachable"), "{output:#?}");
}

#[tokio::test]
async fn check_looks_at_what_a_run_would_stumble_over() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    std::fs::write(&key, "nsec1nonsense").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let cli = Cli::with_config(&format!(
        "local: {{url: ws://127.0.0.1:1}}\npeers:\n  - name: p\n    url: ws://127.0.0.1:2\n    direction: pull\n    \
         auth: {{secret_key_file: {}}}\n    filters: [{{kinds: [1, 5]}}]\n",
        key.display()
    ));
    let output = cli.run(&["check"]).await;
    assert_eq!(output.code, 2, "{output:#?}");
    assert!(output.stderr.contains("holds no key") && !output.stderr.contains("nonsense"), "{output:#?}");
}

#[tokio::test]
async fn a_job_that_stands_twice_in_the_config_runs_once() {
    let (local, peer) = (ModelRelay::start(Quirks::default()).await, ModelRelay::start(Quirks::default()).await);
    let cli = Cli::with_config(&format!(
        "local: {{url: \"{}\"}}\npeers:\n  - name: p\n    url: {}\n    direction: pull\n    \
         filters: [{{kinds: [1]}}, {{kinds: [1]}}]\n",
        local.url(),
        peer.url()
    ));
    let output = cli.run(&["sync", "--json"]).await;
    assert_eq!((output.code, output.json_lines().len()), (0, 1), "{output:#?}");
    assert!(output.stderr.contains("twice"), "{output:#?}");
}

/// A difference that could not be computed in full is none that was.
#[tokio::test]
async fn a_dry_run_that_could_not_see_everything_says_so() {
    let listed = Quirks { page_cap: Some(100), neg: Neg::Err("blocked: off".into()), ..Quirks::default() };
    let (local, peer) = (ModelRelay::start(Quirks::default()).await, ModelRelay::start(listed).await);
    peer.fill(&Author::new(1).notes_of_one_second(150, EPOCH));
    let cli = Cli::new();
    let output =
        cli.run(&["sync", local.url(), peer.url(), "--filter", r#"{"kinds":[1]}"#, "--dry-run", "--json"]).await;
    assert_eq!(output.code, 1, "{output:#?}");
    assert_eq!(output.json_lines()[0]["gaps"][0]["cap"], 100, "{output:#?}");
}

#[tokio::test]
async fn probe_says_what_a_relay_is() {
    let relay = ModelRelay::start(Quirks::default()).await;
    let cli = Cli::new();
    let output = cli.run(&["probe", relay.url(), "--json"]).await;
    let probe = &output.json_lines()[0];
    assert_eq!((output.code, &probe["reachable"], &probe["error"]), (0, &json!(true), &Value::Null));
    assert_eq!((&probe["negentropy"], &probe["reads"]), (&json!("yes"), &json!("yes")));
    assert_eq!(probe["info"]["name"], "model");
    let text = cli.run(&["probe", relay.url()]).await;
    assert!(text.stdout.starts_with(relay.url()) && text.stdout.contains("negentropy    yes"), "{}", text.stdout);

    relay.change(|quirks| quirks.auth = Auth::required());
    let probe = cli.run(&["probe", relay.url(), "--json"]).await.json_lines().remove(0);
    assert_eq!((&probe["reachable"], &probe["reads"]), (&json!(true), &json!("auth-required")));
    assert_eq!(probe["negentropy"], "auth-required");

    let output = cli.run(&["probe", "ws://127.0.0.1:1", "--json"]).await;
    assert_eq!((output.code, &output.json_lines()[0]["reachable"]), (3, &json!(false)));
    assert_eq!(cli.run(&["probe", "relay.example"]).await.code, 2);
}

#[tokio::test]
async fn what_is_for_other_programs_is_whole() {
    let cli = Cli::new();
    let schema = cli.run(&["schema"]).await;
    let value: Value = serde_json::from_str(&schema.stdout).unwrap();
    assert_eq!(schema.code, 0);
    assert!(value["$schema"].as_str().unwrap().contains("json-schema.org"));
    assert!(value["properties"]["peers"].is_object() && value["properties"]["local"].is_object());
    for (arguments, part) in [
        (["completions", "bash"], "complete -F _tieline"),
        (["completions", "zsh"], "#compdef tieline"),
        (["completions", "fish"], "complete -c tieline"),
    ] {
        let output = cli.run(&arguments).await;
        assert_eq!((output.code, output.stderr.as_str()), (0, ""));
        assert!(output.stdout.contains(part), "{}", output.stdout);
    }
    let man = cli.run(&["man"]).await;
    assert!(man.code == 0 && man.stdout.contains(".TH tieline 1") && man.stdout.contains("tieline\\-sync"));
    assert_eq!(cli.run(&["--version"]).await.stdout, concat!("tieline ", env!("CARGO_PKG_VERSION"), "\n"));
    let help = cli.run(&["sync", "--help"]).await;
    assert!(help.code == 0 && help.stdout.contains("130 interrupted"), "{}", help.stdout);
}

#[tokio::test]
async fn what_stays_missing_is_partial() {
    let pair = Pair::start().await;
    pair.peer.change(|quirks| {
        *quirks = std::mem::take(quirks).on_event(|_| Verdict::Refuse("error: database is locked".into()));
    });
    let output = pair.sync(&Cli::new(), &["--direction", "push", "--json"]).await;
    let report = &output.json_lines()[0];
    assert_eq!((output.code, &report["outcome"], &report["passes"]), (1, &json!("partial"), &json!(4)));
    assert_eq!(report["uploaded"]["failed"], 3);
    let error = report["error"].as_str().unwrap();
    assert!(error.contains("still missing") && error.contains(pair.peer.url()), "{error}");
    assert!(error.contains("database is locked"), "{error}");
}

/// The job that `Pair::sync` runs, as its lock knows it.
fn spec(pair: &Pair) -> JobSpec {
    JobSpec {
        peer: pair.peer.url().into(),
        name: "filter".into(),
        local_url: pair.local.url().parse().unwrap(),
        peer_url: pair.peer.url().parse().unwrap(),
        filter: filter_from_json(NOTES, now()).unwrap().0,
        relative: RelativeTime::default(),
        direction: Direction::Pull,
        strategy: StrategyChoice::Auto,
        exclude: Vec::new(),
        limits: Limits::default(),
    }
}

#[tokio::test]
async fn a_job_that_another_run_holds_is_left_to_it() {
    let (pair, cli) = (Pair::start().await, Cli::new());
    let state = cli.directory().join("state");
    let lock = JobLock::take(&state, spec(&pair).key()).unwrap();
    let output = pair.sync(&cli, &["--json"]).await;
    let report = &output.json_lines()[0];
    assert_eq!((output.code, &report["outcome"], pair.counts()), (4, &json!("locked"), (6, 6)));
    let error = report["error"].as_str().unwrap();
    assert!(error.contains("another run holds this job") && error.contains(&std::process::id().to_string()), "{error}");
    assert_eq!(pair.sync(&cli, &["--dry-run"]).await.code, 0, "a dry run waits for nobody");
    assert_eq!(pair.sync(&cli, &["--direction", "push"]).await.code, 0, "another job is free");
    drop(lock);
    assert_eq!((pair.sync(&cli, &[]).await.code, pair.counts()), (0, (9, 9)));
}

#[tokio::test]
async fn two_runs_at_once_do_not_do_the_same() {
    let (pair, cli) = (Pair::start().await, Cli::new());
    pair.peer.change(|quirks| quirks.delay = Duration::from_secs(5));
    let arguments = ["sync", pair.local.url(), pair.peer.url(), "--filter", NOTES, "--json"];
    let first = cli.spawn(&arguments);
    asked(&pair.peer).await;
    assert_eq!(cli.run(&arguments).await.code, 4);
    first.signal("TERM").await;
    assert_eq!(first.finish().await.code, 130);
}

async fn asked(relay: &ModelRelay) {
    for _ in 0..3000 {
        if relay.received("NEG-OPEN") > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing was asked");
}

#[tokio::test]
async fn a_signal_ends_the_run_in_order() {
    for signal in ["INT", "TERM"] {
        let (pair, cli) = (Pair::start().await, Cli::new());
        pair.peer.change(|quirks| quirks.delay = Duration::from_secs(60));
        let running = cli.spawn(&["sync", pair.local.url(), pair.peer.url(), "--filter", NOTES, "--json"]);
        asked(&pair.peer).await;
        running.signal(signal).await;
        let output = running.finish().await;
        let report = &output.json_lines()[0];
        assert_eq!((output.code, &report["outcome"]), (130, &json!("interrupted")), "{signal}: {output:#?}");

        let state = State::open_read_only(&cli.directory().join("state")).await.unwrap();
        let [job] = &state.job_rows().await.unwrap()[..] else { panic!("the job is not there") };
        assert_eq!((job.state.as_str(), job.failures, job.running), ("idle", 0, false));
        let [run] = &state.run_rows(None, 0).await.unwrap()[..] else { panic!("the run is not there") };
        assert!(run.report.get().contains(r#""outcome":"interrupted""#));
        drop(state);
        pair.peer.change(|quirks| quirks.delay = Duration::ZERO);
        assert_eq!((pair.sync(&cli, &[]).await.code, pair.counts()), (0, (9, 6)), "the lock is free");
    }
}

#[tokio::test]
async fn the_second_signal_does_not_wait() {
    let (pair, cli) = (Pair::start().await, Cli::new());
    pair.peer.change(|quirks| quirks.delay = Duration::from_secs(60));
    let running = cli.spawn(&["sync", pair.local.url(), pair.peer.url(), "--filter", NOTES]);
    asked(&pair.peer).await;
    running.signal("INT").await;
    // It may have ended on the first one already.
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(running.finish().await.code, 130);
}

/// A reader that goes away, as `head` does, is no error and no panic.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_pipe_is_no_error() {
    let (pair, cli) = (Pair::start().await, Cli::new());
    let state = cli.directory().join("state").display().to_string();
    let sync = ["--state-dir", &state, "sync", pair.local.url(), pair.peer.url(), "--filter", NOTES, "--json"];
    let all: [&[&str]; 5] = [&["schema"], &["man"], &["completions", "bash"], &["--help"], &sync];
    for arguments in all {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_tieline"))
            .args(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && !stderr.contains("panicked"), "{arguments:?} {}: {stderr}", output.status);
    }
    assert_eq!(pair.counts(), (9, 6), "the sync itself went on");
}

#[tokio::test]
async fn a_key_is_never_shown_nor_event_content_nor_what_auth_says() {
    const CONTENT: &str = "an unmistakable sentence of somebody's";
    let pair = Pair::start().await;
    pair.peer.change(|quirks| quirks.auth = Auth::required());
    pair.peer.fill(&[Author::new(5).note_saying(EPOCH, CONTENT)]);
    pair.peer.fill(&[Author::new(5).note_saying(EPOCH + 1, CONTENT).with_forged_signature()]);
    let cli = Cli::with_config(&format!(
        "local: {{url: '{}'}}\npeers: [{{name: p, url: '{}', direction: both, auth: {{secret_key_file: key}}, filters: [{NOTES}]}}]\n",
        pair.local.url(),
        pair.peer.url()
    ));
    let secret = Client::author().secret();
    let nsec = nostr::key::Keys::parse(&secret).unwrap().secret_key().to_bech32().unwrap();
    let mut shown = Vec::new();
    for (text, format) in [(&secret, "text"), (&nsec, "json")] {
        let key = cli.write("key", text);
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let output = cli.run(&["-vvv", "--log-format", format, "sync", "--json"]).await;
        assert_eq!(output.code, 0, "{output:#?}");
        shown.extend([output.stdout, output.stderr]);
    }
    let check = cli.run(&["check", "--probe", "--json"]).await;
    assert_eq!(check.code, 0, "{check:#?}");
    shown.extend([check.stdout, check.stderr]);
    shown.push(String::from_utf8_lossy(&bytes_below(&cli.directory().join("state"))).into_owned());

    let answers: Vec<Value> = pair
        .peer
        .frames()
        .iter()
        .filter(|frame| frame.verb == "AUTH")
        .map(|frame| serde_json::from_str(&frame.text).unwrap())
        .collect();
    let mut secrets = vec![secret, nsec, CONTENT.to_owned()];
    secrets.extend(answers.iter().filter_map(|answer| Some(answer[1]["sig"].as_str()?.to_owned())));
    secrets.extend(answers.iter().filter_map(|answer| Some(answer[1].as_str()?.to_owned())));
    assert!(secrets.len() > 5, "no AUTH took place");
    for text in &shown {
        let text = text.to_lowercase();
        assert!(secrets.iter().all(|secret| !text.contains(&secret.to_lowercase())), "{text}");
    }
}

#[tokio::test]
async fn a_key_that_cannot_be_used_is_said_and_not_shown() {
    let pair = Pair::start().await;
    let cli = Cli::with_config(&format!(
        "local: {{url: '{}'}}\npeers: [{{name: p, url: '{}', direction: pull, auth: {{secret_key_file: key}}, filters: [{NOTES}]}}]\n",
        pair.local.url(),
        pair.peer.url()
    ));
    let rows = [(Author::new(1).secret(), 0o644, "chmod 600"), ("hunter2".to_owned(), 0o600, "holds no key")];
    for (text, mode, message) in rows {
        let key = cli.write("key", &text);
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        let output = cli.run(&["sync", "--json"]).await;
        let report = &output.json_lines()[0];
        assert_eq!((output.code, &report["outcome"]), (3, &json!("failed")));
        let error = report["error"].as_str().unwrap();
        assert!(error.contains("the key for p") && error.contains(message), "{error}");
        assert!(!output.stderr.contains(&text) && !output.stdout.contains(&text));
    }
    std::fs::remove_file(cli.directory().join("key")).unwrap();
    let output = cli.run(&["sync"]).await;
    assert_eq!(output.code, 3);
    assert!(output.stdout.contains("cannot read the key in key"), "{output:#?}");
}

#[tokio::test]
async fn logs_go_to_standard_error_as_text_or_json() {
    let (pair, cli) = (Pair::start().await, Cli::new());
    let arguments = ["sync", pair.local.url(), pair.peer.url(), "--filter", NOTES, "--json"];
    let output = cli.run(&[&["--log-format", "json", "-v"], &arguments[..]].concat()).await;
    assert_eq!((output.code, output.json_lines().len()), (0, 1));
    let lines: Vec<Value> = output.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["fields"]["message"] == "job ended"), "{lines:#?}");
    let output = cli.run(&[&["-q"], &arguments[..]].concat()).await;
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
}
