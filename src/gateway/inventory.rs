//! The events of a filter as they were when the session opened, and the answers they give. Pure.

use negentropy::{Id, Negentropy, NegentropyStorageVector};

use super::refusal::Refusal;
use crate::nostr::{EventId, Timestamp};

/// What is kept of an event.
pub type Item = (Timestamp, EventId);

/// Bytes of an item.
pub const ITEM_BYTES: usize = 40;

/// Something that is held, and given back by being dropped.
pub type Hold = Box<dyn Send>;

/// Frozen, in (created_at, id) order.
pub struct Inventory {
    storage: NegentropyStorageVector,
    /// The memory it takes.
    _memory: Hold,
}

/// A query to be answered. It may take milliseconds, and belongs where that stalls nobody.
pub struct Work {
    /// The session's key.
    pub session: u64,
    source: Source,
    query: Vec<u8>,
    frame_bytes: usize,
}

enum Source {
    Inventory(Inventory),
    /// Pages of a listing, and the memory they take.
    Pages(Vec<Vec<Item>>, Hold),
}

/// A query that was answered.
pub struct Worked {
    /// The session's key.
    pub session: u64,
    /// The answer, and what the next one is made from.
    pub result: Result<(Vec<u8>, Inventory), Refusal>,
}

impl Work {
    /// The first query, to what was listed.
    pub(super) fn first(session: u64, pages: Vec<Vec<Item>>, memory: Hold, query: Vec<u8>, frame_bytes: usize) -> Self {
        Self { session, source: Source::Pages(pages, memory), query, frame_bytes }
    }

    /// A further query.
    pub(super) fn next(session: u64, inventory: Inventory, query: Vec<u8>, frame_bytes: usize) -> Self {
        Self { session, source: Source::Inventory(inventory), query, frame_bytes }
    }

    /// Answers.
    #[must_use]
    pub fn run(self) -> Worked {
        let Self { session, source, query, frame_bytes } = self;
        let answer = || {
            let inventory = match source {
                Source::Inventory(inventory) => inventory,
                Source::Pages(pages, memory) => Inventory::new(pages, memory)?,
            };
            let answer = inventory.answer(&query, frame_bytes)?;
            Ok((answer, inventory))
        };
        Worked { session, result: answer() }
    }
}

impl Inventory {
    /// Puts pages in order. Each is let go of as it is taken over.
    fn new(pages: Vec<Vec<Item>>, memory: Hold) -> Result<Self, Refusal> {
        let fault = |error: negentropy::Error| Refusal::Fault(error.to_string());
        let mut storage = NegentropyStorageVector::with_capacity(pages.iter().map(Vec::len).sum());
        for page in pages {
            for (created_at, id) in page {
                storage.insert(created_at, Id::from_byte_array(*id.as_bytes())).map_err(fault)?;
            }
        }
        storage.seal().map_err(fault)?;
        Ok(Self { storage, _memory: memory })
    }

    /// The answer of a responder, in `frame_bytes` at the most. A query in another version
    /// of the protocol is answered with the version that is spoken here.
    fn answer(&self, query: &[u8], frame_bytes: usize) -> Result<Vec<u8>, Refusal> {
        Negentropy::borrowed(&self.storage, frame_bytes as u64)
            .and_then(|mut responder| responder.reconcile(query))
            .map_err(|error| Refusal::Malformed(format!("malformed negentropy message: {error}")))
    }
}
