//! Where the state is kept when nobody says where.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The state directory of this environment: systemd's `$STATE_DIRECTORY`, else root's, else the
/// user's own; none where the user has no home. `env` looks up a variable.
#[must_use]
pub fn default_dir(env: impl Fn(&str) -> Option<String>, is_root: bool) -> Option<PathBuf> {
    // systemd separates several directories by colons; the others are not for us.
    if let Some(dir) = env("STATE_DIRECTORY").as_deref().and_then(|dirs| absolute(dirs.split(':').next()?)) {
        return Some(dir);
    }
    if is_root {
        return Some(ROOT_DIR.into());
    }
    // A relative $XDG_STATE_HOME is to be ignored, by its specification.
    let home = env("XDG_STATE_HOME").as_deref().and_then(absolute);
    let home = home.or_else(|| Some(absolute(&env("HOME")?)?.join(".local/state")))?;
    Some(home.join("tieline"))
}

/// Whether this process runs as root.
#[must_use]
pub fn is_root() -> bool {
    // Without libc there is no geteuid; the owner of /proc/self is the same on Linux, and where
    // there is no /proc there is `id`.
    if let Ok(process) = std::fs::metadata("/proc/self") {
        return process.uid() == 0;
    }
    std::process::Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

fn absolute(path: &str) -> Option<PathBuf> {
    Path::new(path).is_absolute().then(|| path.into())
}

const ROOT_DIR: &str = if cfg!(target_os = "freebsd") { "/var/db/tieline" } else { "/var/lib/tieline" };

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(env: &[(&str, &str)], is_root: bool) -> Option<PathBuf> {
        default_dir(|name| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()), is_root)
    }

    #[test]
    fn the_first_that_is_known_wins() {
        let home = ("HOME", "/home/ada");
        let xdg = ("XDG_STATE_HOME", "/xdg");
        let systemd = ("STATE_DIRECTORY", "/var/lib/private/tieline:/var/lib/other");
        for (env, is_root, expected) in [
            (vec![home, xdg, systemd], false, Some("/var/lib/private/tieline")),
            (vec![home, xdg, systemd], true, Some("/var/lib/private/tieline")),
            (vec![home, xdg], true, Some(ROOT_DIR)),
            (vec![home, xdg], false, Some("/xdg/tieline")),
            (vec![home, ("XDG_STATE_HOME", "relative")], false, Some("/home/ada/.local/state/tieline")),
            (vec![home, ("STATE_DIRECTORY", "")], false, Some("/home/ada/.local/state/tieline")),
            (vec![], false, None),
        ] {
            assert_eq!(dir(&env, is_root), expected.map(PathBuf::from), "{env:?}");
        }
    }

    #[test]
    fn root_is_told_by_what_id_says() {
        let id = std::process::Command::new("id").arg("-u").output().unwrap();
        assert_eq!(is_root(), id.stdout == b"0\n");
    }
}
