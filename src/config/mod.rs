//! The config, as it is meant: every value in it is one that the rest of Tieline can use as it is.
//!
//! Two stages. `file` is what stands in the file, and its schema; `shape` checks keys and types
//! against that schema; the other files turn what is written into what is meant. All errors are
//! gathered on the way (`finding`), each with its place (`spans`). Nothing is bound, dialled or
//! opened while a config is read; only [`AuthSource::load`] and [`find_file`] touch the system.

mod file;
mod filter;
mod finding;
mod gateway;
mod jobs;
mod lint;
mod locate;
mod network;
mod relay;
mod schedule;
mod secret;
mod services;
mod shape;
mod spans;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::PathBuf;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::job_spec::RelativeTime;
use crate::nostr::{Filter, Timestamp};

use file::{File, FilterText};
use finding::{Findings, Path};
use jobs::{JobOptions, Pair};
use relay::RelayOptions;
use spans::{Place, Spans};

pub use finding::{ConfigErrors, Finding};
pub use gateway::{GatewayLimits, GatewaySettings};
pub use jobs::Job;
pub use locate::{NoConfigFile, find_file};
pub use network::{Network, NetworkError};
pub use relay::{Proxy, ProxyError, RelaySettings, Retry};
pub use schedule::{Cron, CronError, Schedule, When};
pub use secret::{AuthSource, SecretError};
pub use services::{GraspSettings, HttpSettings, NotifySettings};

/// Everything an operator has settled.
#[derive(Clone, Debug)]
pub struct Config {
    /// The relay that this process runs beside.
    pub local: RelaySettings,
    /// The peers that are enabled.
    pub peers: Vec<RelaySettings>,
    /// One per filter of each peer, where both are enabled.
    pub jobs: Vec<Job>,
    /// Directory of the state file; `None` for what the system provides.
    pub state_dir: Option<PathBuf>,
    /// Metrics, health, status and a page, if wanted.
    pub http: Option<HttpSettings>,
    /// Discovery of git relays, if wanted.
    pub grasp: Option<GraspSettings>,
    /// The NIP-77 responder, if wanted.
    pub gateway: Option<GatewaySettings>,
    /// Notices of what was newly stored, if wanted.
    pub notify: Option<NotifySettings>,
}

impl Config {
    /// Reads a config file's text, and warns of what it hardly means. `file` is its name, for
    /// people; `now` is what relative times are counted from.
    ///
    /// # Errors
    /// Everything that is wrong, each with its line, column and key path.
    pub fn from_yaml(text: &str, file: &str, now: Timestamp) -> Result<(Self, Vec<Finding>), ConfigErrors> {
        let (written, mut findings) = read_yaml::<File>(text, file);
        lint::comments(text, &mut findings);
        let config = written.and_then(|written| Self::from_file(written, now, &mut findings));
        findings.finish(config)
    }

    fn from_file(file: File, now: Timestamp, findings: &mut Findings<'_>) -> Option<Self> {
        let root = Path::default();
        let http = file.http.and_then(|http| HttpSettings::read(&http, &root.key("http"), findings));
        let grasp = file.grasp.and_then(|grasp| GraspSettings::read(&grasp, &root.key("grasp"), findings));
        let gateway = file.gateway.and_then(|gateway| GatewaySettings::read(&gateway, &root.key("gateway"), findings));
        let notify = file.notify.and_then(|notify| NotifySettings::read(&notify, &root.key("notify"), findings));

        let at_defaults = root.key("defaults");
        let defaults = file.defaults.unwrap_or_default();
        let relay_defaults = RelayOptions::read(&defaults.relay, &at_defaults, findings);
        let job_defaults = JobOptions::read(&defaults.job, now, &at_defaults, findings);

        // A missing relay does not keep the errors further down from being found.
        let local = file.local.and_then(|local| {
            let at = root.key("local");
            let options = RelayOptions::read(&local.relay, &at, findings);
            options.settings(local.name.or_else(|| Some("local".to_owned())), local.url, &at, findings)
        });
        let mut names: HashSet<_> = local.iter().map(|local| local.name.clone()).collect();
        let mut peers = Vec::new();
        let mut jobs = Vec::new();
        for (index, peer) in file.peers.into_iter().flatten().enumerate() {
            let at = root.key("peers").index(index);
            let options = RelayOptions::read(&peer.relay, &at, findings).over(&relay_defaults);
            let settings = options.settings(peer.name, peer.url, &at, findings);
            if settings.as_ref().is_some_and(|peer| !names.insert(peer.name.clone())) {
                findings.error(&at.key("name"), "another relay has this name");
            }
            let options = JobOptions::read(&peer.job, now, &at, findings).over(&job_defaults);
            let (filters, at_filters) = match (&peer.filters, &defaults.filters) {
                (None, Some(filters)) => (filters.as_slice(), at_defaults.key("filters")),
                (filters, _) => (filters.as_deref().unwrap_or_default(), at.key("filters")),
            };
            let pair = Pair { local: local.as_ref(), peer: settings.as_ref(), at: &at };
            let its_jobs = jobs::read(filters, &at_filters, &pair, &options, now, findings);
            if let Some(settings) = settings.filter(|_| options.is_enabled()) {
                peers.push((at, settings));
                jobs.extend(its_jobs);
            }
        }
        let local = local?;
        lint::relays(&local, &peers, findings);
        if let Some(gateway) = &gateway {
            lint::gateway(&local, gateway.listen, &root.key("gateway"), findings);
        }
        let peers = peers.into_iter().map(|(_, peer)| peer).collect();
        Some(Self { local, peers, jobs, state_dir: file.state_dir, http, grasp, gateway, notify })
    }
}

/// Reads a filter of the command line, as leniently as one of the config file, and says which of
/// its times move with the present.
///
/// # Errors
/// Everything that is wrong with it.
pub fn filter_from_json(text: &str, now: Timestamp) -> Result<(Filter, RelativeTime), ConfigErrors> {
    // JSON is YAML.
    let (written, mut findings) = read_yaml::<FilterText>(text, "--filter");
    let filter = written.and_then(|written| filter::read(&written.0, now, &Path::default(), &mut findings));
    Ok(findings.finish(filter)?.0)
}

/// The JSON Schema of the config file, for editors.
#[must_use]
pub fn schema() -> Value {
    schema_of::<File>()
}

fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Reads a text as it is written, less what does not fit.
fn read_yaml<'a, T: JsonSchema + DeserializeOwned>(text: &str, file: &'a str) -> (Option<T>, Findings<'a>) {
    let root = Path::default();
    let mut value: Value = match serde_yaml::from_str(text) {
        Ok(value) => value,
        Err(error) => {
            let mut findings = Findings::new(file, Spans::default());
            let place = error.location().map_or(Place::START, |at| Place { line: at.line(), column: at.column() });
            let message =
                error.to_string().replacen(&format!(" at line {} column {}", place.line, place.column), "", 1);
            findings.error_at(place, &root, message);
            return (None, findings);
        }
    };
    let spans = Spans::read(text);
    let duplicates = spans.duplicates.clone();
    let mut findings = Findings::new(file, spans);
    for (at, place) in duplicates {
        findings.error_at(place, &at, "this key is there twice");
    }
    if !shape::check(&mut value, &schema_of::<T>(), &root, &mut findings) {
        return (None, findings);
    }
    let written = serde_json::from_value(value);
    if written.is_err() && findings.is_clean(&root) {
        // What does not fit the schema is out. The error is not shown: it could repeat a value.
        findings.error(&root, "this file does not fit its schema");
    }
    (written.ok(), findings)
}
