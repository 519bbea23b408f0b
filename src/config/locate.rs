//! Where the config file is looked for.

use std::env;
use std::path::PathBuf;

/// No config file in any of the usual places.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no config file: none was named, and there is none at {}", shown(.0))]
pub struct NoConfigFile(Vec<PathBuf>);

/// The config file: the one that was named, else `$TIELINE_CONFIG`, else the first that exists of
/// `./peers.yaml`, `/usr/local/etc/tieline/peers.yaml` (FreeBSD) and `/etc/tieline/peers.yaml`.
/// A file that was named need not exist: reading it says so better.
///
/// # Errors
/// When none was named and none exists.
pub fn find_file(explicit: Option<PathBuf>) -> Result<PathBuf, NoConfigFile> {
    let named = || env::var_os("TIELINE_CONFIG").filter(|name| !name.is_empty()).map(PathBuf::from);
    if let Some(path) = explicit.or_else(named) {
        return Ok(path);
    }
    let mut usual = vec![PathBuf::from("./peers.yaml")];
    if cfg!(target_os = "freebsd") {
        usual.push("/usr/local/etc/tieline/peers.yaml".into());
    }
    usual.push("/etc/tieline/peers.yaml".into());
    match usual.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => Err(NoConfigFile(usual)),
    }
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
}
