//! What an operator is shown.

use serde::Serialize;

use super::{JobRow, ParkedCount, State, StateError};

/// The object that `tieline status --json` prints and `/status` answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StatusView {
    /// Every job that ran here, by peer and filter.
    pub jobs: Vec<JobRow>,
    /// What is parked, by destination and reason.
    pub parked: Vec<ParkedCount>,
}

impl State {
    /// All that `status` shows.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub async fn status(&self) -> Result<StatusView, StateError> {
        Ok(StatusView { jobs: self.job_rows().await?, parked: self.parked_counts().await? })
    }
}
