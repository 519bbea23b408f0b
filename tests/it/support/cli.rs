//! Runs the built program.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::{Child, Command};

/// No command of these tests takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program with a state directory of its own, and a config file when it is given one. It
/// sees nothing of the configuration of the machine.
pub struct Cli {
    directory: TempDir,
    config: Option<PathBuf>,
}

/// What a finished command left.
#[derive(Debug)]
pub struct Output {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// The lines of stdout, each as JSON.
    pub fn json_lines(&self) -> Vec<serde_json::Value> {
        let read = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}\n{self:#?}"));
        self.stdout.lines().map(read).collect()
    }
}

impl Default for Cli {
    fn default() -> Self {
        Self::new()
    }
}

impl Cli {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), config: None }
    }

    /// With this config file.
    pub fn with_config(yaml: &str) -> Self {
        let mut cli = Self::new();
        cli.config = Some(cli.write("peers.yaml", yaml));
        cli
    }

    /// Where it runs; `state` within it is the state directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Puts a file into its directory.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Runs it to its end.
    pub async fn run(&self, arguments: &[&str]) -> Output {
        let child = self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        finish(child, arguments).await
    }

    /// The same, where the config alone says where the state is.
    pub async fn run_as_configured(&self, arguments: &[&str]) -> Output {
        let mut command = self.command_as_configured(arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        finish(child, arguments).await
    }

    /// Starts it and leaves it running.
    pub fn spawn(&self, arguments: &[&str]) -> Running {
        let child = self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running { child }
    }

    /// Starts it and leaves it running, however much it prints: that goes into the file `log`,
    /// behind what is there.
    pub fn spawn_logged(&self, arguments: &[&str]) -> Running {
        self.spawn_with(arguments, &[])
    }

    /// The same, with these environment variables.
    pub fn spawn_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Running {
        let log = std::fs::File::options().create(true).append(true).open(self.directory().join("log")).unwrap();
        let mut command = self.command(arguments);
        let command = command.envs(variables.iter().copied()).stdout(log.try_clone().unwrap()).stderr(log);
        Running { child: command.spawn().unwrap() }
    }

    /// What those have printed so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory().join("log")).unwrap_or_default()
    }

    /// Puts another config in the place of the one it was given.
    pub fn rewrite_config(&self, yaml: &str) {
        self.write("peers.yaml", yaml);
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let state = self.directory().join("state");
        let mut all = vec!["--state-dir", state.to_str().unwrap()];
        all.extend(arguments);
        self.command_as_configured(&all)
    }

    fn command_as_configured(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
        command.env_clear().env("HOME", self.directory()).current_dir(self.directory());
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        command
    }
}

/// A command that runs, killed when it is dropped.
pub struct Running {
    child: Child,
}

impl Running {
    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id().expect("it has ended")
    }

    /// Sends it a signal, such as `TERM`, `INT` or `HUP`.
    pub async fn signal(&self, name: &str) {
        let id = self.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &id]).status().await.unwrap();
        assert!(status.success());
    }

    /// Waits for its end.
    pub async fn finish(self) -> Output {
        finish(self.child, &[]).await
    }
}

async fn finish(child: Child, arguments: &[&str]) -> Output {
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output())
        .await
        .unwrap_or_else(|_| panic!("tieline {arguments:?} does not end"))
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    // A command that a signal ended has no code; shells write -1.
    Output { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}
