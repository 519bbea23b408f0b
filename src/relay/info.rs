//! What a relay says of itself (NIP-11), read leniently: everything in it is optional, and a
//! field of the wrong shape is a field that is not there.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::nostr::{PeerText, RelayUrl};

/// The parts of a relay's information document that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RelayInfo {
    /// Its name.
    pub name: Option<String>,
    /// The program it runs.
    pub software: Option<String>,
    /// That program's version.
    pub version: Option<String>,
    /// NIPs it says it speaks. A hint, no more.
    pub supported_nips: Vec<u64>,
    /// The longest message it takes, in bytes.
    pub max_message_length: Option<usize>,
    /// The most subscriptions at once.
    pub max_subscriptions: Option<usize>,
    /// The most events it returns for one REQ.
    pub max_limit: Option<usize>,
    /// Whether it wants to know who asks.
    pub auth_required: bool,
    /// Whether it takes events from some only.
    pub restricted_writes: bool,
}

/// A document is a few kB; a larger one is not read.
const MAX_DOCUMENT: usize = 256 << 10;

/// Asks for a relay's document over HTTP; `None` where there is none, for whatever reason.
pub(super) async fn ask(url: &RelayUrl, client: &reqwest::Client, wait: Duration) -> Option<RelayInfo> {
    let answer = async {
        let request = client.get(url.to_http()).header("Accept", "application/nostr+json");
        let mut response = request.send().await.ok()?.error_for_status().ok()?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.ok()? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_DOCUMENT {
                return None;
            }
        }
        serde_json::from_slice::<Value>(&body).ok().filter(Value::is_object)
    };
    let document = tokio::time::timeout(wait, answer).await.ok()??;
    Some(RelayInfo::read(&document))
}

impl RelayInfo {
    /// Reads a document.
    #[must_use]
    pub fn read(document: &Value) -> Self {
        let text = |key: &str| document[key].as_str().map(|text| PeerText::new(text).as_str().to_owned());
        let limit = &document["limitation"];
        // Zero, or a negative number, is no limit anybody means.
        let number = |key: &str| {
            limit[key].as_u64().filter(|&number| number > 0).and_then(|number| usize::try_from(number).ok())
        };
        let nips = document["supported_nips"].as_array();
        Self {
            name: text("name"),
            software: text("software"),
            version: text("version"),
            supported_nips: nips.into_iter().flatten().filter_map(Value::as_u64).collect(),
            max_message_length: number("max_message_length"),
            max_subscriptions: number("max_subscriptions"),
            max_limit: number("max_limit"),
            auth_required: limit["auth_required"].as_bool().unwrap_or_default(),
            restricted_writes: limit["restricted_writes"].as_bool().unwrap_or_default(),
        }
    }

    /// The longest negentropy message to send, in bytes before hex: 60,000, because strfry takes
    /// 131,072 bytes of JSON; less where the relay takes less.
    #[must_use]
    pub fn max_query(&self) -> usize {
        const WIDEST: usize = 60_000;
        // A query of this size holds 40 ranges: below it a reconciliation is not worth the name.
        const LEAST: usize = 4096;
        // Verb, session id and filter stand beside the hex digits.
        self.max_message_length.map_or(WIDEST, |most| (most.saturating_sub(2048) / 2).clamp(LEAST, WIDEST))
    }

    /// The most events to ask for at once: 500, or less where the relay says so.
    #[must_use]
    pub fn page_limit(&self) -> usize {
        const USUAL: usize = 500;
        self.max_limit.unwrap_or(USUAL).min(USUAL)
    }

    /// Ids that fit into one REQ.
    #[must_use]
    pub fn ids_per_request(&self) -> usize {
        // An id is 64 digits, two quotes and a comma.
        let fit = self.max_message_length.map_or(usize::MAX, |most| most.saturating_sub(256) / 67);
        self.page_limit().min(fit).max(1)
    }

    /// Subscriptions to hold open at once: 10 or the number given, or one less than the relay
    /// allows.
    #[must_use]
    pub fn subscriptions(&self, wanted: Option<usize>) -> usize {
        const USUAL: usize = 10;
        let wanted = wanted.unwrap_or(USUAL).max(1);
        self.max_subscriptions.map_or(wanted, |most| most.saturating_sub(1).clamp(1, wanted))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn odd_documents_are_read_as_far_as_they_go() {
        let info = RelayInfo::read(&json!({
            "name": 5, "software": "strfry", "pubkey": "", "icon": "",
            "supported_nips": [1, "11", 77],
            "limitation": {
                "max_message_length": 131_072, "max_limit": -1, "max_subscriptions": 0,
                "created_at_lower_limit": -5, "auth_required": "no"
            }
        }));
        assert_eq!(info.software.as_deref(), Some("strfry"));
        assert_eq!(info.supported_nips, [1, 77]);
        assert_eq!((info.name, info.max_limit, info.max_subscriptions), (None, None, None));
        assert_eq!(RelayInfo::read(&json!([])), RelayInfo::default());
    }

    #[test]
    fn limits_follow_what_the_relay_says() {
        let info = |limitation| RelayInfo::read(&json!({ "limitation": limitation }));
        assert_eq!(info(json!({})).max_query(), 60_000);
        assert_eq!(info(json!({ "max_message_length": 16_384 })).max_query(), 7168);
        assert_eq!(info(json!({ "max_message_length": 100 })).max_query(), 4096);
        assert_eq!(info(json!({ "max_limit": 100 })).page_limit(), 100);
        assert_eq!(info(json!({ "max_limit": 5000 })).page_limit(), 500);
        assert_eq!(info(json!({ "max_message_length": 16_384 })).ids_per_request(), 240);
        assert_eq!(info(json!({ "max_subscriptions": 1 })).subscriptions(None), 1);
    }
}
