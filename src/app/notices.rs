//! The notices of a daemon: one queue, and a task that posts, where the config wants them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinHandle;

use crate::config::NotifySettings;
use crate::metrics::Metrics;
use crate::notify::{Notifier, Outbox};
use crate::relay::{Redirects, client_config, http_client};

/// How long what waits may take to be posted when the process ends.
const LAST_WORDS: Duration = Duration::from_millis(900);

/// Notices, if wanted.
#[derive(Debug, Default)]
pub(super) struct Notices {
    running: Option<(NotifySettings, Outbox, JoinHandle<()>)>,
}

impl Notices {
    /// Goes over to other settings. What waits under the old ones is still posted.
    ///
    /// # Errors
    /// When the token cannot be read. Nothing is changed then.
    pub(super) fn update(&mut self, settings: Option<&NotifySettings>, metrics: &Arc<Metrics>) -> Result<()> {
        if self.running.as_ref().map(|(settings, ..)| settings) == settings {
            return Ok(());
        }
        self.running = match settings {
            Some(settings) => {
                let token = settings.token().context("notify.token_file")?;
                let client = http_client(&client_config(None)?, None, false, Redirects::Refused);
                let (notifier, outbox) = Notifier::new(settings.url.clone(), token, client, metrics.clone());
                Some((settings.clone(), outbox, tokio::spawn(notifier.run())))
            }
            None => None,
        };
        Ok(())
    }

    /// Where to put what was stored, if anybody wants to know.
    pub(super) fn outbox(&self) -> Option<&Outbox> {
        self.running.as_ref().map(|(_, outbox, _)| outbox)
    }

    /// Posts what waits, and ends.
    pub(super) async fn finish(self) {
        if let Some((_, outbox, running)) = self.running {
            drop(outbox);
            // What is not posted by then is not posted.
            let _ = tokio::time::timeout(LAST_WORDS, running).await;
        }
    }
}
