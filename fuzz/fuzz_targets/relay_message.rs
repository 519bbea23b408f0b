//! A relay that says anything at all, in text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tieline::nostr::{Event, RelayMessage};

fuzz_target!(|frame: &str| {
    if let Ok(RelayMessage::Event { event, .. }) = RelayMessage::parse(frame) {
        let _ = Event::parse(event);
    }
});
