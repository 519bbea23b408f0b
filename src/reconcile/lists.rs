//! Lists of ids, each waiting to be checked off against the other side's.

use super::message::Id;

/// All ids that one side has in a range, while those of the other side in it are collected.
#[derive(Debug, Default)]
struct List {
    /// Sorted; whether the other side has it too.
    ids: Vec<(Id, bool)>,
    /// Tasks that still collect for it.
    open: usize,
}

/// The lists under way, each known by its place.
#[derive(Debug, Default)]
pub(super) struct Lists {
    slots: Vec<List>,
    free: Vec<usize>,
    held: usize,
}

impl Lists {
    /// Keeps a list; a task has to be opened for it.
    pub fn add(&mut self, ids: &[Id]) -> usize {
        let mut ids: Vec<_> = ids.iter().map(|&id| (id, false)).collect();
        ids.sort_unstable();
        ids.dedup();
        self.held += ids.len();
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(List::default());
            self.slots.len() - 1
        });
        self.slots[at] = List { ids, open: 0 };
        at
    }

    /// One more task collects for a list.
    pub fn open(&mut self, at: usize) {
        self.slots[at].open += 1;
    }

    /// Checks an id off; whether it was there.
    pub fn check(&mut self, at: usize, id: &Id) -> bool {
        let ids = &mut self.slots[at].ids;
        match ids.binary_search_by_key(&id, |(id, _)| id) {
            Ok(found) => {
                ids[found].1 = true;
                true
            }
            Err(_) => false,
        }
    }

    /// The other side has exactly these.
    pub fn settle(&mut self, at: usize) {
        self.held -= std::mem::take(&mut self.slots[at].ids).len();
    }

    /// One task for a list is done; with the last, the ids that nothing checked off are left.
    pub fn close(&mut self, at: usize) -> impl Iterator<Item = Id> + use<> {
        let list = &mut self.slots[at];
        list.open -= 1;
        let ids = if list.open == 0 {
            self.free.push(at);
            std::mem::take(&mut list.ids)
        } else {
            Vec::new()
        };
        self.held -= ids.len();
        ids.into_iter().filter(|(_, found)| !found).map(|(id, _)| id)
    }

    /// Ids held in all of them.
    pub const fn held(&self) -> usize {
        self.held
    }
}
