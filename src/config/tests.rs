//! The config as a whole: what loads, what it comes to, and what is said of the rest.

use std::time::Duration;

use super::*;
use crate::job_spec::{Direction, Limits, StrategyChoice};
use crate::nostr::TagName;

const NOW: Timestamp = 1_800_000_000;
const HEX: &str = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e";
const NPUB: &str = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg";
const NSEC: &str = "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5";
const EXAMPLE: &str = include_str!("../../peers.example.yaml");
const LOCAL: &str = "local: {url: 'ws://127.0.0.1:7777'}\n";

fn load(text: &str) -> (Config, Vec<Finding>) {
    Config::from_yaml(text, "peers.yaml", NOW).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(text: &str) -> String {
    Config::from_yaml(text, "peers.yaml", NOW).expect_err("this should not load").to_string()
}

/// What is said of a peer with these further lines.
fn peer_errors(lines: &str) -> String {
    errors(&format!("{LOCAL}peers:\n- name: a\n  url: wss://a\n  {}\n", lines.replace('\n', "\n  ")))
}

/// What is said of a filter.
fn filter_errors(filter: &str) -> String {
    peer_errors(&format!("direction: both\nfilters: [{filter}]"))
}

#[test]
fn the_shape_that_operators_write_loads() {
    let text = r##"
local:
  url: ws://127.0.0.1:7777
peers:
  - name: community-relay
    url: wss://relay.community.example
    direction: both
    interval_seconds: 300
    filters:
      - authors: ["<pubkey hex or npub>"]
        kinds: [0, 5, 37375, 37376, 7375, 7377]
      - "#p": ["<pubkey hex or npub>"]
        kinds: [1059, 7378]
"##;
    for key in [HEX, NPUB] {
        let (config, warnings) = load(&text.replace("<pubkey hex or npub>", key));
        assert_eq!(warnings, []);
        assert_eq!(config.local.name, "local");
        let [first, second] = config.jobs.as_slice() else { panic!("two filters, two jobs") };
        assert_eq!(first.spec.to_string(), "community-relay/filter-1 (both)");
        assert_eq!(second.spec.name, "filter-2");
        assert_eq!(first.schedule.when, When::Every(Duration::from_secs(300)));
        assert_eq!(
            first.spec.filter.to_string(),
            format!(r#"{{"authors":["{HEX}"],"kinds":[0,5,7375,7377,37375,37376]}}"#)
        );
        assert_eq!(second.spec.filter.to_string(), format!(r##"{{"#p":["{HEX}"],"kinds":[1059,7378]}}"##));
        assert_eq!(first.spec.limits, Limits::default());
    }
}

#[test]
fn the_example_loads_and_shows_the_defaults() {
    let (plain, warnings) = load(EXAMPLE);
    assert_eq!(warnings, []);
    let (full, _) = load(&uncommented());
    assert_eq!(full.peers[1].retry, plain.peers[1].retry);
    assert_eq!(full.jobs[2].schedule, plain.jobs[2].schedule);
    assert_eq!(full.jobs[2].live, plain.jobs[2].live);
    assert_eq!(full.jobs[2].spec.strategy, plain.jobs[2].spec.strategy);
    let limits = Limits { events_per_second: None, bytes_per_second: None, ..full.jobs[2].spec.limits.clone() };
    assert_eq!(limits, plain.jobs[2].spec.limits);
    let (services, _) = load(&format!("{LOCAL}http: {{}}\ngateway: {{}}\ngrasp: {{service: 'wss://git.example'}}\n"));
    assert_eq!(full.http, services.http);
    assert_eq!(full.gateway, services.gateway);
    assert_eq!(
        full.grasp,
        services.grasp.map(|grasp| GraspSettings { allow: Some(vec!["relay.example".into()]), ..grasp })
    );
}

#[test]
fn the_example_names_every_key() {
    fn keys(schema: &Value, found: &mut Vec<String>) {
        if let Value::Object(map) = schema {
            found.extend(
                map.get("properties").and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key.clone()),
            );
            map.values().for_each(|value| keys(value, found));
        } else if let Value::Array(list) = schema {
            list.iter().for_each(|value| keys(value, found));
        }
    }
    let mut found = Vec::new();
    keys(&schema(), &mut found);
    assert!(found.len() > 50, "{found:?}");
    // At most one of each group can stand there as a key.
    let told = ["cron", "manual", "secret_key_env", "secret_key_credential"];
    for key in found {
        let stands = uncommented().lines().any(|line| {
            line.trim_start_matches([' ', '-']).strip_prefix(&key).is_some_and(|rest| rest.starts_with(':'))
        });
        assert!(stands || told.contains(&key.as_str()) && EXAMPLE.contains(&format!("{key} (")), "{key}");
    }
}

/// The example with every key switched on.
fn uncommented() -> String {
    let line = |line: &str| {
        let text = line.trim_start();
        let indent = &line[..line.len() - text.len()];
        match text.strip_prefix('#') {
            Some(key) if key.starts_with(|c: char| c != ' ') => format!("{indent}{key}\n"),
            _ => format!("{line}\n"),
        }
    };
    EXAMPLE.lines().map(line).collect()
}

#[test]
fn the_nearest_place_decides() {
    let (config, _) = load(&format!(
        "{LOCAL}defaults: {{direction: pull, live: true, limits: {{passes: 2, empty_guard: 0}}, exclude: [{{kinds: [4]}}], \
           retry: {{base: 1s}}, filters: [{{kinds: [1]}}]}}
peers:
- {{name: a, url: 'wss://a', strategy: paged, limits: {{passes: 3}}, retry: {{cap: 1m}}, schedule: manual, filters: [
    {{name: one, direction: push, filter: {{kinds: [7]}}, exclude: [{{kinds: [5]}}], live: false}},
    {{kinds: [0], limits: {{passes: 5}}, schedule: {{cron: '0 3 * * 1-5', overlap: 2h}}}},
    {{kinds: [3], enabled: false}}]}}
- {{name: b, url: 'wss://b'}}
- {{name: c, url: 'wss://c', enabled: false}}
"
    ));
    let [one, two, three] = config.jobs.as_slice() else { panic!("{:?}", config.jobs) };
    assert_eq!((one.spec.direction, one.live, one.spec.strategy), (Direction::Push, false, StrategyChoice::Paged));
    assert_eq!((one.spec.limits.passes, one.spec.limits.empty_guard), (3, 0));
    assert_eq!(one.spec.exclude.len(), 2);
    assert_eq!(one.schedule.when, When::Manual);
    assert_eq!((two.spec.direction, two.live, two.spec.limits.passes), (Direction::Pull, true, 5));
    assert_eq!(two.schedule.when, When::Cron("0 3 * * 1-5".parse().unwrap()));
    assert_eq!(two.schedule.overlap, Duration::from_secs(7200));
    assert_eq!(three.spec.to_string(), "b/filter-1 (pull)");
    assert_eq!(config.peers.len(), 2);
    assert_eq!(config.peers[0].retry.base, Duration::from_secs(1));
    assert_eq!(config.peers[0].retry.cap, Duration::from_secs(60));
}

#[test]
fn all_errors_are_reported_at_once() {
    let text = "\
local:
  ulr: ws://127.0.0.1:7777
peers:
  - name: a
    url: https://a
    direction: bothh
    interval_seconds: 0
    live: yes please
    filters:
      - kinds: [1, 70000, x]
        authors: []
        since: yesterday
      - {limit: 5, kinds: [1], kids: 2}
  - url: wss://b
    name: a
    name: c
    filters: 3
    proxy: ftp://x
    limits: {passes: 4294967296, spool: 1}
http: {listen: 9747}
";
    assert_eq!(
        errors(text),
        "\
peers.yaml:2:3: local.ulr: unknown key `ulr`, did you mean `url`?
peers.yaml:5:10: peers[0].url: expected a ws:// or wss:// URL, found scheme \"https\"
peers.yaml:6:16: peers[0].direction: expected pull, push or both, did you mean `both`?
peers.yaml:7:23: peers[0].interval_seconds: expected a whole number, 1 or more
peers.yaml:8:11: peers[0].live: expected true or false, found text
peers.yaml:10:20: peers[0].filters[0].kinds[1]: expected a whole number, 0 to 65535
peers.yaml:10:27: peers[0].filters[0].kinds[2]: expected a whole number, found text
peers.yaml:11:18: peers[0].filters[0].authors: this list is empty, and relays disagree whether that matches nothing \
or everything; remove the key to match everything
peers.yaml:12:16: peers[0].filters[0].since: expected seconds since 1970, a time such as 2026-01-31T12:00:00Z, or -30d
peers.yaml:13:10: peers[0].filters[1].limit: `limit` cannot be used: a comparison covers all matching events
peers.yaml:13:32: peers[0].filters[1].kids: unknown key `kids`, did you mean `ids`?
peers.yaml:16:5: peers[1].name: this key is there twice
peers.yaml:17:14: peers[1].filters: expected a list, found a number
peers.yaml:18:12: peers[1].proxy: expected socks5h://host:port or http://host:port
peers.yaml:19:22: peers[1].limits.passes: expected a whole number, 1 to 4294967295
peers.yaml:19:34: peers[1].limits.spool: unknown key `spool`, expected one of bytes_per_second, empty_guard, \
events_per_second, fetches_in_flight, inventory_events, parked_ids, passes, publishes_in_flight, spool_bytes
peers.yaml:20:16: http.listen: expected text, found a number: put it in quotes"
    );
}

#[test]
fn what_is_missing_is_said_once() {
    assert_eq!(errors("peers: []\n"), "peers.yaml:1:1: local: this key is missing");
    assert_eq!(errors("[]"), "peers.yaml:1:1: expected a mapping, found a list");
    let text = format!("{LOCAL}peers:\n- {{}}\n");
    let missing = "this key is missing";
    assert_eq!(
        errors(&text),
        format!(
            "peers.yaml:3:3: peers[0].name: {missing}\npeers.yaml:3:3: peers[0].url: {missing}\n\
             peers.yaml:3:3: peers[0].filters: expected at least one filter"
        )
    );
    let direction = "peers.yaml:3:3: peers[0].direction: this key is missing: say pull, push or both, for the filter, \
        for the peer or in `defaults`";
    assert_eq!(peer_errors("filters: [{kinds: [1]}, {kinds: [2]}]"), direction);
    assert_eq!(
        peer_errors("directoin: pull\nfilters: [{kinds: [1]}]"),
        "peers.yaml:5:3: peers[0].directoin: unknown key `directoin`, did you mean `direction`?"
    );
}

#[test]
fn yaml_errors_have_a_place() {
    assert_eq!(
        errors("local:\n  url: [ws://h\n"),
        "peers.yaml:3:1: did not find expected ',' or ']', while parsing a flow sequence at line 2 column 8"
    );
    for text in
        ["", "a: &b [*b, *b]", "a: *b", "1: 2", "? [a]\n: 1", "a: !x 1", "---\na: 1\n---\nb: 2\n", "\u{feff}", "\t"]
    {
        assert!(errors(text).starts_with("peers.yaml:1:") || errors(text).starts_with("peers.yaml:2:"), "{text:?}");
    }
    errors(&"[".repeat(10_000));
    errors(&"a: {".repeat(10_000));
}

#[test]
fn a_secret_is_refused_and_not_repeated() {
    let places = [
        format!("auth: {NSEC}"),
        format!("auth: {{secret_key: {NSEC}}}"),
        format!("auth: {{secret_key: {HEX}}}"),
        format!("auth: {{secret_key_file: {NSEC}}}"),
        format!("auth: {{secret_key_env: {HEX}}}"),
        format!("auth: {{secret_key_credential: '{}'}}", NSEC.to_uppercase()),
        format!("{NSEC}: 1"),
        format!("nsec: {HEX}"),
        format!("proxy: 'socks5h://{NSEC}@h:1'"),
        format!("strategy: {NSEC}"),
        format!("exclude: [{{authors: [{NSEC}]}}]"),
    ];
    for place in &places {
        let said = peer_errors(&format!("{place}\ndirection: pull\nfilters: [{{kinds: [1]}}]"));
        let lower = said.to_lowercase();
        assert!(said.contains("a secret key has no place in this file"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!lower.contains(&NSEC[5..]) && !lower.contains(HEX), "{said}");
    }
    for broken in [
        format!("{NSEC}: ["),
        format!("{NSEC}: 1\n{NSEC}: {{{NSEC}: 1}}"),
        format!("a: !{NSEC} 1"),
        format!("*{NSEC}"),
        format!("? [{NSEC}]\n: 1"),
    ] {
        assert!(!errors(&broken).contains(&NSEC[5..]), "{}", errors(&broken));
    }
    let url = format!("{LOCAL}peers: [{{name: a, url: '{NSEC}:x', direction: pull, filters: [{{kinds: [1]}}]}}]");
    assert!(!errors(&url).contains(NSEC));
}

#[test]
fn where_a_key_is_kept_is_said_once() {
    let said = peer_errors("auth: {secret_key_file: a, secret_key_env: b}\ndirection: pull\nfilters: [{kinds: [1]}]");
    let one = "peers[0].auth: expected exactly one of secret_key_file, secret_key_env, secret_key_credential";
    assert_eq!(said, format!("peers.yaml:5:9: {one}"));
    let (config, _) = load(&format!("{LOCAL}defaults: {{auth: {{secret_key_env: KEY}}}}\n"));
    assert_eq!(config.local.auth, None);
}

#[test]
fn what_moves_too_much_is_refused() {
    let all = "this filter matches every event: if that is meant, say `allow_unrestricted: true`";
    assert_eq!(filter_errors("{}"), format!("peers.yaml:6:13: peers[0].filters[0]: {all}"));
    assert_eq!(filter_errors("{since: -1d}"), format!("peers.yaml:6:13: peers[0].filters[0]: {all}"));
    assert_eq!(
        filter_errors("{filter: {}, direction: pull}"),
        format!("peers.yaml:6:22: peers[0].filters[0].filter: {all}")
    );
    let (config, _) = load(&format!(
        "{LOCAL}defaults: {{allow_unrestricted: true, direction: pull, filters: [{{}}]}}\npeers: [{{name: a, url: 'wss://a'}}]\n"
    ));
    assert!(config.jobs[0].spec.filter.is_unrestricted());
    // A key that is wrong is not a key that is missing.
    assert_eq!(filter_errors("{authers: [x]}").lines().count(), 1);
    assert_eq!(filter_errors("{authors: x}").lines().count(), 1);
    assert_eq!(filter_errors("5"), "peers.yaml:6:13: peers[0].filters[0]: expected a mapping, found a number");
    assert!(filter_errors("{kinds: [1], filter: {kinds: [1]}}").contains("not both"));
    assert!(filter_errors("{since: 5, until: 4, kinds: [1]}").contains("filters[0].since: `since` is after `until`"));
    assert!(filter_errors("{kinds: [1], exclude: [{since: -1d}]}").contains("exclude[0]: a relative time"));
    assert!(filter_errors("{kinds: [1], exclude: [{}]}").contains("exclude[0]: this excludes every event"));
}

#[test]
fn names_are_used_once() {
    let filters = "direction: pull\nfilters: [{kinds: [1]}, {kinds: [2], name: filter-1}]";
    assert_eq!(
        peer_errors(filters),
        "peers.yaml:6:46: peers[0].filters[1].name: this peer has another filter of that name"
    );
    for name in ["a", "local"] {
        let text = format!(
            "{LOCAL}defaults: {{direction: pull, filters: [{{kinds: [1]}}]}}\npeers:\n- {{name: a, url: 'wss://a'}}\n- {{name: {name}, url: 'wss://b'}}\n"
        );
        assert_eq!(errors(&text), "peers.yaml:5:10: peers[1].name: another relay has this name");
    }
}

#[test]
fn schedules_that_contradict_themselves_are_refused() {
    let said = |schedule: &str| peer_errors(&format!("{schedule}\ndirection: pull\nfilters: [{{kinds: [1]}}]"));
    assert!(said("interval_seconds: 5\nschedule: manual").contains("expected only one of"));
    assert!(said("schedule: {every: 5m, cron: '* * * * *'}").contains("expected only one of"));
    assert!(said("schedule: {cron: '* * * *'}").contains("schedule.cron: expected five fields"));
    assert!(said("schedule: {every: 0s}").contains("schedule.every: expected a time span above 0"));
    assert!(said("schedule: manuel").contains("did you mean `manual`?"));
    for schedule in ["manual", "{manual}", "{manual: true}"] {
        let (config, _) = load(&format!(
            "{LOCAL}peers: [{{name: a, url: 'wss://a', direction: pull, schedule: {schedule}, filters: [kinds: [1]]}}]"
        ));
        assert_eq!(config.jobs[0].schedule.when, When::Manual);
    }
    assert!(said("retry: {base: 2h}").contains("`base` is longer than `cap`"));
}

#[test]
fn services_are_checked() {
    let said = |lines: &str| errors(&format!("{LOCAL}{lines}"));
    assert!(said("http: {listen: localhost}").contains("http.listen: expected an address and a port"));
    let (config, _) = load(&format!(
        "{LOCAL}grasp: {{service: 'wss://g', allow: [Relay.Example., '[::1]', '::1', 0x7f.1], batch_window: 100ms}}\n"
    ));
    let grasp = config.grasp.unwrap();
    assert_eq!(grasp.allow.unwrap(), ["relay.example", "::1", "::1", "127.0.0.1"]);
    assert_eq!(grasp.batch_window, Duration::from_millis(100));
    assert!(said("grasp: {service: 'wss://g', batch_window: 0s}").contains("grasp.batch_window: expected a time span"));
    assert!(said("grasp: {}").contains("grasp.service: this key is missing"));
    assert!(said("grasp: {service: 'wss://g', bootstrap: [x]}").contains("grasp.bootstrap[0]: not a URL"));
    assert!(said("grasp: {service: 'wss://g', deny: ['a b']}").contains("grasp.deny[0]: expected the name"));
    assert!(said("gateway: {limits: {frame_bytes: 100}}").contains("expected at least 4096"));
    let itself = errors("local: {url: 'ws://localhost:7780/'}\ngateway: {}\n");
    assert!(itself.contains("gateway: the gateway would listen where it takes the local relay to be"), "{itself}");
    assert!(said("gateway: {limits: {message_bytes: 100}}").contains("expected at least 4096"));
    assert!(said("gateway: {trusted_proxies: [10.0.0.0/33]}").contains("gateway.trusted_proxies[0]: expected an IP"));
    assert!(said("notify: {url: 'ftp://x'}").contains("notify.url: expected an http://"));
}

#[test]
fn likely_mistakes_are_warned_of() {
    let text = format!(
        "\
local: {{url: 'ws://localhost:7777'}}
defaults: {{direction: pull}}
peers:
- name: a
  url: ws://127.0.0.1:7777/
  filters:
  - authors: [{HEX}]
    kinds: [1]
- name: b
  url: ws://[::1]:7777
  filters:
  - #p: [{HEX}]
    kinds: [1059]
"
    );
    let (config, warnings) = load(&text);
    assert!(!config.jobs[1].spec.filter.has_tag(TagName::new('p').unwrap()));
    let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "peers.yaml:5:8: peers[0].url: this peer is the local relay",
            "peers.yaml:7:5: peers[0].filters[0]: `kinds` has no 5: deletions by these authors will not travel",
            "peers.yaml:7:5: peers[0].filters: every filter names authors and none has `#p`: what others send to them \
             will not travel",
            "peers.yaml:10:8: peers[1].url: this peer is the local relay",
            "peers.yaml:10:8: peers[1].url: this is the same relay as the peer \"a\"",
            "peers.yaml:12:5: this line is a comment: if it is meant as a filter's key, write \"#p\"",
        ]
    );
}

#[test]
fn an_alias_stands_for_its_value() {
    let (config, _) = load(&format!(
        "{LOCAL}defaults: {{direction: pull}}\npeers:\n- {{name: a, url: 'wss://a', filters: &f [{{kinds: [1]}}]}}\n- {{name: b, url: 'wss://b', filters: *f}}\n"
    ));
    assert_eq!(config.jobs.len(), 2);
}
