//! `tieline check`: what is wrong with the config, and with `--probe` what its relays are.

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;

use super::probe::probe;
use super::sync::FAILED;
use super::{Globals, OK, USAGE, print};
use crate::app::Relays;
use crate::clock;
use crate::config::{Config, find_file};

/// How to check.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Also ask each relay what it is and can do
    #[arg(long)]
    probe: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Checks the config and returns the exit code: warnings alone are no failure.
pub async fn run(args: &CheckArgs, globals: &Globals) -> Result<u8> {
    let path = find_file(globals.config.clone())?;
    let name = path.display().to_string();
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
    let (config, warnings) = match Config::from_yaml(&text, &name, clock::now()) {
        Ok(read) => read,
        Err(errors) if args.json => {
            print(&json!({ "file": name, "errors": errors.0, "warnings": [] }).to_string())?;
            return Ok(USAGE);
        }
        Err(errors) => {
            print(&errors.to_string())?;
            return Ok(USAGE);
        }
    };
    // What a run would stumble over at its start: keys and certificates.
    let relays = Relays::of(&config);
    if let Some(fault) = relays.faults().next() {
        bail!("{fault}");
    }
    let mut probes = Vec::new();
    if args.probe {
        let urls = std::iter::once(&config.local).chain(&config.peers).map(|relay| &relay.url);
        for relay in urls.filter_map(|url| relays.get(url)) {
            probes.push(probe(relay).await);
        }
    }
    if args.json {
        print(&json!({ "file": name, "errors": [], "warnings": warnings, "relays": probes }).to_string())?;
    } else {
        let mut lines: Vec<_> = warnings.iter().map(|warning| format!("{warning} (warning)")).collect();
        let (peers, jobs) = (config.peers.len(), config.jobs.len());
        let services = [
            ("http", config.http.is_some()),
            ("grasp", config.grasp.is_some()),
            ("notify", config.notify.is_some()),
            ("gateway", config.gateway.is_some()),
        ];
        let services: String =
            services.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| format!(", {name}")).collect();
        lines.push(format!("{name}: good: {peers} peers, {jobs} jobs{services}"));
        lines.extend(probes.iter().map(super::probe::Probe::text));
        print(&lines.join("\n"))?;
    }
    let unreachable = probes.iter().any(|probe| !probe.is_reachable());
    Ok(if unreachable { FAILED } else { OK })
}
