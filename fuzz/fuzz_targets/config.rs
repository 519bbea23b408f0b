//! A config file that holds anything. Its size is bounded, because serde_yaml takes long over
//! thousands of nested brackets.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tieline::config::Config;

fuzz_target!(|text: &str| {
    if text.len() < 10_000 {
        let _ = Config::from_yaml(text, "fuzz", 1_800_000_000);
    }
});
