//! The command line: what was typed, and which command it means. Exit codes are decided here
//! and in `sync.rs`, nowhere else.

mod check;
mod gateway;
mod probe;
mod report;
mod run;
mod status;
mod sync;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::clock;
use crate::config::{Config, Finding, find_file};
use crate::state::{State, StateError, default_dir, is_root};

pub use self::report::table;

/// Everything is as it should be.
const OK: u8 = 0;
/// A usage or config error.
const USAGE: u8 = 2;

/// Keeps Nostr relays in sync, exactly.
#[derive(Debug, Parser)]
#[command(name = "tieline", version, about, max_term_width = 100)]
struct Args {
    /// The config file [default: peers.yaml here, or /etc/tieline/peers.yaml]
    #[arg(long, global = true, env = "TIELINE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to remember what was done [default: the system's place for a service's state]
    #[arg(long, global = true, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Log more: -v what jobs do, -vv what relays say
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Log errors only, and show no progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// How log lines are written
    #[arg(long, global = true, value_enum, default_value = "text", value_name = "FORMAT")]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The daemon: schedules, live streams, status, and the gateway if there is one
    Run(run::RunArgs),
    /// Bring relays to the same events, once, and prove it
    Sync(sync::SyncArgs),
    /// Show what jobs did, and what they are doing
    Status(status::StatusArgs),
    /// List the ids that are known not to be movable for now, or forget them
    Parked(status::ParkedArgs),
    /// The gateway alone: negentropy (NIP-77) in front of a relay that lacks it
    Gateway(gateway::GatewayArgs),
    /// Read the config and say what is wrong with it
    Check(check::CheckArgs),
    /// Show what one relay is and can do
    Probe(probe::ProbeArgs),
    /// Print the JSON Schema of the config file, for editors
    Schema,
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
}

/// Runs the command line to its end.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(error) => {
            // To standard output for --help, to standard error for a mistake; if neither can be
            // written there is nobody to tell.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { OK });
        }
    };
    start_log(&args);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return ExitCode::from(USAGE);
        }
    };
    let code = runtime.block_on(dispatch(args)).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        USAGE
    });
    // Connections are closed by their tasks; none is worth waiting for.
    runtime.shutdown_background();
    ExitCode::from(code)
}

async fn dispatch(args: Args) -> Result<u8> {
    let globals = Globals { config: args.config, state_dir: args.state_dir, quiet: args.quiet };
    match args.command {
        Command::Run(args) => run::run(args, &globals).await,
        Command::Sync(args) => sync::run(args, &globals).await,
        Command::Status(args) => status::run(&args, &globals).await,
        Command::Parked(args) => status::parked(&args, &globals).await,
        Command::Gateway(args) => gateway::run(args, &globals).await,
        Command::Check(args) => check::run(&args, &globals).await,
        Command::Probe(args) => probe::run(&args).await,
        Command::Schema => {
            print(&serde_json::to_string_pretty(&crate::config::schema())?)?;
            Ok(OK)
        }
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "tieline", &mut text);
            print(&String::from_utf8(text)?)?;
            Ok(OK)
        }
        Command::Man => {
            let mut text = Vec::new();
            clap_mangen::Man::new(Args::command()).render(&mut text)?;
            print(&String::from_utf8(text)?)?;
            Ok(OK)
        }
    }
}

/// What every command may need of the command line.
#[derive(Debug)]
struct Globals {
    config: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    quiet: bool,
}

impl Globals {
    /// Reads the config; its warnings go to standard error.
    fn config(&self) -> Result<Config> {
        let (config, warnings) = read_config(&find_file(self.config.clone())?)?;
        warn(&warnings);
        Ok(config)
    }

    /// The state directory: as typed, else as configured, else the system's place.
    fn state_dir(&self, configured: Option<&PathBuf>) -> Result<PathBuf> {
        let usual = || default_dir(|name| std::env::var(name).ok(), is_root());
        self.state_dir
            .clone()
            .or_else(|| configured.cloned())
            .or_else(usual)
            .context("no place for the state: set --state-dir, or state_dir in the config")
    }

    /// The config for commands that only look, and the state directory that it names: it need not
    /// be there or be right.
    ///
    /// # Errors
    /// When it is so broken that nobody can say which state it means: to show another one would be
    /// to say that nothing runs.
    fn known_config(&self) -> Result<(Option<Config>, Option<PathBuf>)> {
        let Ok(path) = find_file(self.config.clone()) else { return Ok((None, None)) };
        match read_config(&path) {
            Ok((config, _)) => {
                let dir = config.state_dir.clone();
                Ok((Some(config), dir))
            }
            Err(_) => {
                let path = path.display();
                tracing::warn!(config = %path, "cannot be used (`tieline check` says why): going on without it");
                let text = std::fs::read_to_string(path.to_string()).unwrap_or_default();
                let dir = match serde_yaml::from_str::<serde_yaml::Value>(&text) {
                    Ok(value) => value.get("state_dir").and_then(serde_yaml::Value::as_str).map(PathBuf::from),
                    Err(_) if self.state_dir.is_some() => None,
                    Err(_) => bail!("{path} does not say where the state is: mend it, or give --state-dir"),
                };
                Ok((None, dir))
            }
        }
    }

    /// The state directory for commands that only look.
    fn known_state_dir(&self) -> Result<PathBuf> {
        // A config that is not needed need not be right.
        let named = if self.state_dir.is_none() { self.known_config()?.1 } else { None };
        self.state_dir(named.as_ref())
    }
}

/// A config file as it is now, with what it hardly means.
fn read_config(path: &Path) -> Result<(Config, Vec<Finding>)> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    Ok(Config::from_yaml(&text, &name, clock::now())?)
}

fn warn(warnings: &[Finding]) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

/// The state; without one where the disk is full, because losing it costs time and nothing else.
async fn open_state(dir: &Path) -> Result<Option<State>> {
    match State::open(dir, clock::now()).await {
        Ok(state) => Ok(Some(state)),
        Err(error @ StateError::Full { .. }) => {
            tracing::warn!(%error, "going on without memory: refused events may be offered again");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Prints to standard output. A reader that has gone away, as `head` does, is no error.
fn print(text: &str) -> Result<()> {
    let written = writeln!(std::io::stdout(), "{}", text.trim_end());
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

/// Logs go to standard error: what is on standard output is for programs.
fn start_log(args: &Args) {
    let level = match (args.quiet, args.verbose) {
        (true, _) => "error",
        // On a terminal the display and the table say what `info` would.
        (false, 0) if std::io::stderr().is_terminal() => "warn",
        (false, 0 | 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let filter =
        EnvFilter::try_from_env("TIELINE_LOG").unwrap_or_else(|_| EnvFilter::new(format!("error,tieline={level}")));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match args.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
