//! Where a secret key is kept, and reading it from there.

use std::env::{self, VarError};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path as FilePath, PathBuf};

use crate::nostr::{Keys, KeysError};

use super::file::{Auth, KEY_IN_FILE};
use super::finding::{Findings, Path};

/// Where a secret key is kept. It is never in the config itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AuthSource {
    /// A file that its owner alone can read.
    File(PathBuf),
    /// An environment variable.
    Env(String),
    /// A systemd credential: a file in `$CREDENTIALS_DIRECTORY`.
    Credential(String),
}

/// Why a secret key could not be read. It never repeats what was read.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the key in {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file can be read by others than its owner.
    #[error("{} can be read by others: take that away with chmod 600", .0.display())]
    Exposed(PathBuf),
    /// The environment variable is not set, or holds no text.
    #[error("the environment variable {0} holds no key")]
    Env(String),
    /// systemd gave no credentials.
    #[error("no credential {0}: $CREDENTIALS_DIRECTORY is not set (systemd's LoadCredential= sets it)")]
    NoCredentials(String),
    /// What is there cannot be sent as a token.
    #[error("{} holds no token of one line", .0.display())]
    Token(PathBuf),
    /// What is there is no key.
    #[error("{place} holds no key")]
    Malformed {
        /// The file or the variable.
        place: String,
        /// What a key looks like.
        source: KeysError,
    },
}

/// More than any token is long.
const TOKEN_BYTES: u64 = 16 << 10;

/// More than any key is long, and nothing to hold for a file that is not one.
const KEY_BYTES: u64 = 1024;

impl AuthSource {
    /// Reads the key.
    ///
    /// # Errors
    /// When there is none, or when others can read its file.
    pub fn load(&self) -> Result<Keys, SecretError> {
        let (text, place) = match self {
            Self::File(path) => (read_file(path, KEY_BYTES, is_exposed)?, path.display().to_string()),
            Self::Env(name) => {
                let unset = |_: VarError| SecretError::Env(name.clone());
                (env::var(name).map_err(unset)?, format!("the environment variable {name}"))
            }
            Self::Credential(name) => {
                let directory =
                    env::var_os("CREDENTIALS_DIRECTORY").ok_or_else(|| SecretError::NoCredentials(name.clone()))?;
                let path = FilePath::new(&directory).join(name);
                // systemd guards the directory, and may give a group the file's ACL mask.
                (read_file(&path, KEY_BYTES, |_| false)?, path.display().to_string())
            }
        };
        Keys::parse(&text).map_err(|source| SecretError::Malformed { place, source })
    }

    /// Reads where the key is kept, or notes why that cannot be told.
    pub(super) fn read(written: &Auth, at: &Path, findings: &mut Findings<'_>) -> Option<Self> {
        let sources = [
            ("secret_key_file", written.secret_key_file.clone().map(Self::File)),
            ("secret_key_env", written.secret_key_env.clone().map(Self::Env)),
            ("secret_key_credential", written.secret_key_credential.clone().map(Self::Credential)),
        ];
        let mut given = sources.into_iter().filter_map(|(key, source)| Some((key, source?)));
        let (Some((key, source)), None) = (given.next(), given.next()) else {
            if findings.is_clean(at) {
                findings.error(at, "expected exactly one of secret_key_file, secret_key_env, secret_key_credential");
            }
            return None;
        };
        let (text, is_name) = match &source {
            Self::File(path) => (path.to_str().unwrap_or_default(), !path.as_os_str().is_empty()),
            Self::Env(name) => (name.as_str(), !name.is_empty() && !name.contains(['=', '\0'])),
            Self::Credential(name) => (name.as_str(), !matches!(name.as_str(), "" | "." | "..") && !name.contains('/')),
        };
        let message = if Keys::parse(text).is_ok() {
            KEY_IN_FILE
        } else if is_name {
            return Some(source);
        } else {
            "expected a name"
        };
        findings.error(&at.key(key), message);
        None
    }
}

/// Reads a token for HTTP from a file that its owner alone can read.
pub(super) fn read_token(path: &FilePath) -> Result<String, SecretError> {
    let text = read_file(path, TOKEN_BYTES, is_exposed)?;
    let token = text.trim();
    let is_one = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic()) && (text.len() as u64) < TOKEN_BYTES;
    if is_one { Ok(token.to_owned()) } else { Err(SecretError::Token(path.to_owned())) }
}

fn read_file(path: &FilePath, most: u64, refuse: impl FnOnce(&Metadata) -> bool) -> Result<String, SecretError> {
    let wrap = |source| SecretError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(wrap)?;
    if refuse(&file.metadata().map_err(wrap)?) {
        return Err(SecretError::Exposed(path.to_owned()));
    }
    let mut text = String::new();
    file.take(most).read_to_string(&mut text).map_err(wrap)?;
    Ok(text)
}

#[cfg(unix)]
fn is_exposed(metadata: &Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o077 != 0
}

#[cfg(not(unix))]
fn is_exposed(_: &Metadata) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        fs::write(&path, format!("{}\n", "01".repeat(32))).unwrap();
        let source = AuthSource::File(path.clone());
        for mode in [0o640, 0o604, 0o610] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert!(matches!(source.load(), Err(SecretError::Exposed(_))), "{mode:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        source.load().unwrap();
    }

    #[test]
    fn a_token_is_one_line_that_its_owner_alone_can_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        for (text, mode, token) in [
            ("t0ken\n", 0o600, Some("t0ken")),
            ("t0ken", 0o640, None),
            ("", 0o600, None),
            ("two words", 0o600, None),
            ("two\nlines", 0o600, None),
        ] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_token(&path).ok().as_deref(), token, "{text:?} {mode:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "x".repeat(20_000)).unwrap();
        let error = read_token(&path).unwrap_err().to_string();
        assert!(error.contains("holds no token") && !error.contains("xx"), "{error}");
    }

    #[test]
    fn what_was_read_is_not_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        fs::write(&path, "hunter2").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let error = anyhow::Error::new(AuthSource::File(path).load().unwrap_err());
        assert!(!format!("{error:#} {error:?}").contains("hunter2"));
        let error = AuthSource::Env("TIELINE_TEST_NO_SUCH_VARIABLE".into()).load().unwrap_err();
        assert_eq!(error.to_string(), "the environment variable TIELINE_TEST_NO_SUCH_VARIABLE holds no key");
    }
}
