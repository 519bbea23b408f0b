//! Signed events, made once and kept for the next run.

use std::fs;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow};
use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use nostr::types::Timestamp;

/// When the first event was made, and how much later the last may be.
const START: u64 = 1_650_000_000;
const SPAN: u64 = 2 * 365 * 24 * 3600;

/// Notes by a hundred authors, oldest first.
pub struct Events(Vec<String>);

impl Events {
    /// This many, from the file of an earlier run if there is one.
    pub fn load(count: usize) -> Result<Self> {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-events-{count}.jsonl"));
        if let Ok(text) = fs::read_to_string(&path) {
            return Ok(Self(text.lines().map(str::to_owned).collect()));
        }
        println!("Signing {count} events…");
        let events = sign(count)?;
        // Under another name first: a run that is stopped here must not leave half a file.
        let part = path.with_extension("part");
        fs::write(&part, events.join("\n")).with_context(|| part.display().to_string())?;
        fs::rename(&part, &path)?;
        Ok(Self(events))
    }

    /// Their JSON.
    pub fn all(&self) -> &[String] {
        &self.0
    }

    /// Bytes of JSON per event.
    pub fn average(&self) -> usize {
        self.0.iter().map(String::len).sum::<usize>() / self.0.len().max(1)
    }
}

fn sign(count: usize) -> Result<Vec<String>> {
    let mut random = fastrand::Rng::with_seed(77);
    let mut times: Vec<u64> = (0..count).map(|_| START + random.u64(..SPAN)).collect();
    times.sort_unstable();
    let authors: Vec<Keys> = (0..100).map(|_| Keys::generate()).collect();
    let cores = thread::available_parallelism()?.get();
    let sign = |(number, at): (usize, &u64)| -> Result<String> {
        let (author, other) = (&authors[number % 100], &authors[(number / 100) % 100]);
        let content =
            format!("Note {number}: as long as notes are, a sentence or two, and a word to somebody about it.");
        let event = EventBuilder::new(Kind::from_u16(1), content)
            .tag(Tag::parse(["p", &other.public_key().to_hex()])?)
            .custom_created_at(Timestamp::from_secs(*at))
            .finalize(author)?;
        Ok(event.as_json())
    };
    let numbered: Vec<(usize, &u64)> = times.iter().enumerate().collect();
    thread::scope(|scope| {
        let part = |part: &[(usize, &u64)]| part.iter().copied().map(&sign).collect::<Result<Vec<_>>>();
        let workers: Vec<_> =
            numbered.chunks(count.div_ceil(cores)).map(|chunk| scope.spawn(move || part(chunk))).collect();
        let mut events = Vec::with_capacity(count);
        for worker in workers {
            events.extend(worker.join().map_err(|_| anyhow!("a signing thread panicked"))??);
        }
        Ok(events)
    })
}
