//! `tieline probe`: what one relay is and can do.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::sync::FAILED;
use super::{OK, print};
use crate::clock;
use crate::nostr::{Filter, NegRefusal, RelayUrl};
use crate::relay::{Fault, Link, Relay, RelayError, RelayInfo, RelayOptions, client_config};

/// An empty id list over everything: the shortest query there is (NIP-77), and one that every
/// responder can answer.
const SHORTEST_QUERY: [u8; 5] = [0x61, 0, 0, 2, 0];

/// Which relay.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// The relay
    url: RelayUrl,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What was learnt of a relay.
#[derive(Debug, Serialize)]
pub struct Probe {
    url: String,
    reachable: bool,
    /// From dialling to the first answer.
    connect_ms: Option<u64>,
    /// Of one exchange on an open connection.
    latency_ms: Option<u64>,
    /// `yes`, `no`, `auth-required`, `restricted`, `busy`, `unknown`.
    negentropy: &'static str,
    negentropy_detail: Option<String>,
    /// Whether it lets us read.
    reads: &'static str,
    /// What it says of itself (NIP-11).
    info: Option<RelayInfo>,
    error: Option<String>,
}

/// Asks one relay and prints what it said.
pub async fn run(args: &ProbeArgs) -> Result<u8> {
    let relay = Relay::spawn(RelayOptions::new(args.url.clone(), client_config(None)?));
    let probe = probe(&relay).await;
    print(&if args.json { serde_json::to_string(&probe)? } else { probe.text() })?;
    Ok(if probe.reachable { OK } else { FAILED })
}

/// Asks a relay what it can do.
pub async fn probe(relay: &Relay) -> Probe {
    let link = relay.link();
    let info = relay.document().await;
    let started = clock::instant();
    let first = ask(&link).await;
    let connect_ms = millis(started);
    let mut probe = Probe {
        url: relay.url().to_string(),
        reachable: true,
        connect_ms: Some(connect_ms),
        latency_ms: None,
        negentropy: "unknown",
        negentropy_detail: None,
        reads: "yes",
        info,
        error: None,
    };
    match first {
        Ok(()) => {}
        Err(RelayError { fault: Fault::AuthRefused(_), .. }) => probe.reads = "auth-required",
        Err(RelayError { fault: Fault::Closed(_), .. }) => probe.reads = "restricted",
        Err(error) => {
            (probe.reachable, probe.connect_ms, probe.reads) = (false, None, "unknown");
            probe.error = Some(error.to_string());
            return probe;
        }
    }
    let started = clock::instant();
    // Refused or not, it is an answer.
    let _ = ask(&link).await;
    probe.latency_ms = Some(millis(started));
    let filter = Filter::of_kind(crate::nostr::kind::DELETION);
    let answer = link.reconcile(filter, SHORTEST_QUERY.to_vec()).answer().await;
    (probe.negentropy, probe.negentropy_detail) = match answer {
        Ok(Ok(message)) if message.first() == Some(&SHORTEST_QUERY[0]) => ("yes", None),
        Ok(Ok(_)) => ("no", Some("it speaks another version of the protocol".to_owned())),
        Ok(Err(NegRefusal::TooBig { .. })) => ("yes", Some("within limits on the number of events".to_owned())),
        Ok(Err(refusal @ NegRefusal::Restricted(_))) => ("restricted", Some(refusal.to_string())),
        Ok(Err(refusal @ NegRefusal::Busy(_))) => ("busy", Some(refusal.to_string())),
        Ok(Err(refusal @ NegRefusal::Unsupported(_))) => ("no", Some(refusal.to_string())),
        Ok(Err(refusal)) => ("unknown", Some(refusal.to_string())),
        Err(RelayError { fault: Fault::AuthRefused(reason), .. }) => ("auth-required", Some(reason.to_string())),
        Err(error) => ("unknown", Some(error.fault.to_string())),
    };
    probe
}

async fn ask(link: &Link) -> Result<(), RelayError> {
    // A relay may refuse a filter without any condition, or read it as nothing.
    link.list(Filter::of_kind(1), 1).await.map(|_| ())
}

fn millis(since: Instant) -> u64 {
    u64::try_from((clock::instant() - since).as_millis()).unwrap_or(u64::MAX)
}

impl Probe {
    /// Whether there is a relay.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.reachable
    }

    /// The same for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.url.clone();
        let mut line = |name: &str, value: String| {
            // Writing to a text cannot fail.
            let _ = write!(text, "\n  {name:<14}{value}");
        };
        if let Some(error) = &self.error {
            line("unreachable", error.clone());
            return text;
        }
        if let Some(ms) = self.connect_ms {
            line("connected in", format!("{ms} ms"));
        }
        if let Some(ms) = self.latency_ms {
            line("round trip", format!("{ms} ms"));
        }
        let detail = self.negentropy_detail.as_ref().map(|detail| format!(" ({detail})"));
        line("negentropy", format!("{}{}", self.negentropy, detail.unwrap_or_default()));
        line("reading", self.reads.to_owned());
        let Some(info) = &self.info else {
            line("NIP-11", "no document".to_owned());
            return text;
        };
        let mut given = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                line(name, value);
            }
        };
        given("name", info.name.clone());
        given("software", info.software.clone());
        given("version", info.version.clone());
        let nips: Vec<_> = info.supported_nips.iter().map(ToString::to_string).collect();
        given("NIPs", (!nips.is_empty()).then(|| nips.join(" ")));
        let number = |number: Option<usize>| number.map(|number| number.to_string());
        given("max message", number(info.max_message_length));
        given("max limit", number(info.max_limit));
        given("max subs", number(info.max_subscriptions));
        given("wants AUTH", info.auth_required.then(|| "yes".to_owned()));
        given("writes", info.restricted_writes.then(|| "restricted".to_owned()));
        text
    }
}
