//! A client of the gateway that says anything at all, in any order, while time passes.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use tieline::config::GatewayLimits;
use tieline::gateway::message::{NegMessage, is_negentropy};
use tieline::gateway::responder::{Action, Responder};
use tieline::gateway::{Hold, Item};
use tieline::nostr::EventId;

fuzz_target!(|said: Vec<(u8, String, Vec<u8>)>| {
    let items: Vec<Item> = (0..100_u8).map(|n| (u64::from(n / 7), EventId::new([n.wrapping_mul(91); 32]))).collect();
    // Any moment will do to count from.
    #[allow(clippy::disallowed_methods)]
    let mut now = Instant::now();
    let mut responder = Responder::new(GatewayLimits { sessions_per_connection: 3, ..GatewayLimits::default() }, now);
    for (what, text, bytes) in said {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let id = what % 4;
        let frame = match what / 4 % 4 {
            0 => format!(r#"["NEG-OPEN","{id}",{{"kinds":[1]}},"61{digits}"]"#),
            1 => format!(r#"["NEG-MSG","{id}","61{digits}"]"#),
            2 => format!(r#"["NEG-CLOSE","{id}"]"#),
            _ => text,
        };
        if is_negentropy(&frame) {
            responder.receive(NegMessage::parse(&frame), || Some(Box::new(()) as Hold), now);
        }
        now += Duration::from_secs(u64::from(what));
        responder.tick(now);
        while let Some(action) = responder.poll() {
            match action {
                Action::List { session, .. } => responder.listed(session, Ok((vec![items.clone()], Box::new(())))),
                Action::Work(work) => responder.worked(work.run(), now),
                Action::Send(_) | Action::Refuse { .. } | Action::Forget { .. } => {}
            }
        }
    }
});
