//! Which filters share a subscription, where a relay allows fewer subscriptions than there are
//! filters. Pure.

use std::collections::BTreeMap;

/// Filters in one REQ: strfry takes 200 as it comes.
const MOST_ITEMS: usize = 100;

/// Bytes of filters in one REQ: the shortest message limit in use is 64 KiB.
const MOST_BYTES: usize = 60_000;

/// What one subscription asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pack<T> {
    /// Its name, never used again.
    pub(super) id: u64,
    /// What it asks for.
    pub(super) items: Vec<T>,
    bytes: usize,
    /// Open subscriptions that ask for nothing that this one does not ask for: to be closed when
    /// this one listens, so that nothing is missed between them.
    pub(super) replaces: Vec<u64>,
}

/// What is to change.
#[derive(Debug)]
pub(super) struct Change<T> {
    /// To be opened.
    pub(super) open: Vec<Pack<T>>,
    /// To be closed at once: nothing in them is wanted any more.
    pub(super) close: Vec<u64>,
    /// What found no place.
    pub(super) left_out: Vec<T>,
}

/// The subscriptions at one relay.
#[derive(Debug)]
pub(super) struct Packing<T> {
    packs: BTreeMap<u64, Pack<T>>,
    most: usize,
    next: u64,
}

impl<T: Clone + Ord> Packing<T> {
    /// For a relay that allows so many subscriptions. One is kept free: a subscription that
    /// replaces others is open beside them for a moment.
    pub(super) fn new(allowed: usize) -> Self {
        Self { packs: BTreeMap::new(), most: allowed.saturating_sub(1).max(1), next: 0 }
    }

    /// The relay turned out to allow no more than this. All subscriptions are to be made anew:
    /// there may be no room for any beside them.
    pub(super) fn narrow(&mut self, allowed: usize) -> Vec<u64> {
        self.most = allowed.saturating_sub(1).max(1);
        std::mem::take(&mut self.packs).into_keys().collect()
    }

    /// Takes what is wanted now, each with its size in bytes.
    pub(super) fn set(&mut self, wanted: &BTreeMap<T, usize>) -> Change<T> {
        let before = self.next;
        let mut close = Vec::new();
        self.packs.retain(|id, pack| {
            let stays = pack.items.iter().any(|item| wanted.contains_key(item));
            if !stays {
                close.push(*id);
            }
            stays
        });
        let mut left_out = Vec::new();
        for item in wanted.keys() {
            if self.packs.values().any(|pack| pack.items.contains(item)) {
                continue;
            }
            if self.packs.len() >= self.most {
                self.merge(wanted, before);
            }
            if self.packs.len() < self.most {
                self.add(vec![item.clone()], wanted, Vec::new());
            } else if !self.squeeze(wanted, item, before) {
                left_out.push(item.clone());
            }
        }
        let open = self.packs.range(before..).map(|(_, pack)| pack.clone()).collect();
        Change { open, close, left_out }
    }

    fn add(&mut self, items: Vec<T>, wanted: &BTreeMap<T, usize>, replaces: Vec<u64>) {
        let (id, bytes) = (self.next, weigh(&items, wanted));
        self.next += 1;
        self.packs.insert(id, Pack { id, items, bytes, replaces });
    }

    /// Joins the lightest two again and again, until half of the places are free or nothing fits.
    fn merge(&mut self, wanted: &BTreeMap<T, usize>, before: u64) {
        while self.packs.len() > self.most.div_ceil(2) {
            let mut lightest: Vec<(usize, u64)> = self.packs.values().map(|pack| (pack.bytes, pack.id)).collect();
            lightest.sort_unstable();
            let [(_, a), (_, b), ..] = lightest[..] else { return };
            let kept = |id: u64| self.packs[&id].items.iter().filter(|item| wanted.contains_key(item)).cloned();
            let items: Vec<T> = kept(a).chain(kept(b)).collect();
            if items.len() > MOST_ITEMS || weigh(&items, wanted) > MOST_BYTES {
                return;
            }
            let replaces = [a, b].into_iter().flat_map(|id| self.take(id, before)).collect();
            self.add(items, wanted, replaces);
        }
    }

    /// Puts an item beside others, where there is no place for it alone.
    fn squeeze(&mut self, wanted: &BTreeMap<T, usize>, item: &T, before: u64) -> bool {
        let beside = |pack: &Pack<T>| -> Vec<T> {
            pack.items.iter().filter(|item| wanted.contains_key(item)).chain([item]).cloned().collect()
        };
        let fits = |items: &[T]| items.len() <= MOST_ITEMS && weigh(items, wanted) <= MOST_BYTES;
        let packs = self.packs.values().map(|pack| (pack.id, beside(pack))).filter(|(_, items)| fits(items));
        let Some((id, items)) = packs.min_by_key(|(_, items)| weigh(items, wanted)) else { return false };
        let replaces = self.take(id, before);
        self.add(items, wanted, replaces);
        true
    }

    /// Removes one, and returns the open ones that go with it.
    fn take(&mut self, id: u64, before: u64) -> Vec<u64> {
        match self.packs.remove(&id) {
            Some(pack) if id >= before => pack.replaces,
            // It is open, or about to be: what it was to replace is its own affair.
            Some(_) => vec![id],
            None => Vec::new(),
        }
    }
}

fn weigh<T: Ord>(items: &[T], wanted: &BTreeMap<T, usize>) -> usize {
    items.iter().filter_map(|item| wanted.get(item)).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn wanted(items: impl IntoIterator<Item = u32>) -> BTreeMap<u32, usize> {
        items.into_iter().map(|item| (item, 100)).collect()
    }

    #[test]
    fn each_has_its_own_while_there_is_room() {
        let mut packing = Packing::new(4);
        let change = packing.set(&wanted(0..3));
        assert_eq!(change.open.iter().map(|pack| pack.items.clone()).collect::<Vec<_>>(), [[0], [1], [2]]);
        let change = packing.set(&wanted(1..3));
        assert_eq!((change.open, change.close), (vec![], vec![0]));
    }

    #[test]
    fn what_joins_others_replaces_them() {
        let mut packing = Packing::new(4);
        packing.set(&wanted(0..3));
        let change = packing.set(&wanted(0..4));
        let open: Vec<_> = change.open.into_iter().map(|pack| (pack.items, pack.replaces)).collect();
        assert_eq!(open, [(vec![0, 1], vec![0, 1]), (vec![3], vec![])]);
        assert!(change.close.is_empty() && change.left_out.is_empty());
    }

    #[test]
    fn what_finds_no_place_is_named() {
        let mut packing = Packing::new(1);
        let change = packing.set(&(0..3).map(|item| (item, MOST_BYTES / 2)).collect());
        assert_eq!(change.left_out, [2]);
    }

    #[test]
    fn a_relay_that_allows_less_has_all_made_anew() {
        let mut packing = Packing::new(71);
        packing.set(&wanted(0..70));
        assert_eq!(packing.narrow(10).len(), 70);
        let change = packing.set(&wanted(0..70));
        assert!(change.open.len() < 10 && change.left_out.is_empty(), "{change:?}");
        assert!(change.open.iter().all(|pack| pack.replaces.is_empty()));
    }

    proptest! {
        /// Plays a relay: what is open, and what becomes of it.
        #[test]
        fn all_that_is_wanted_is_asked_for_at_every_moment(
            allowed in 1_usize..12,
            steps in prop::collection::vec(prop::collection::btree_map(0_u32..60, 1_usize..30_000, 0..40), 1..12),
        ) {
            let mut packing = Packing::new(allowed);
            let mut open: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
            for wanted in steps {
                // An item weighs the same for ever.
                let wanted: BTreeMap<u32, usize> =
                    wanted.into_keys().map(|item| (item, 500 * (1 + item as usize))).collect();
                let change = packing.set(&wanted);
                for id in change.close {
                    let closed = open.remove(&id).unwrap();
                    prop_assert!(closed.iter().all(|item| !wanted.contains_key(item)));
                }
                let old = open.clone();
                for pack in change.open {
                    prop_assert!(pack.items.len() <= MOST_ITEMS);
                    let items: BTreeSet<u32> = pack.items.iter().copied().collect();
                    prop_assert!(items.iter().map(|item| wanted[item]).sum::<usize>() <= MOST_BYTES);
                    for id in pack.replaces {
                        let gone = open.remove(&id).unwrap();
                        prop_assert!(gone.iter().all(|item| items.contains(item) || !wanted.contains_key(item)));
                    }
                    prop_assert!(old.is_empty() || open.len() <= allowed.max(old.len()), "one at a time finds room");
                    prop_assert_eq!(open.insert(pack.id, items), None);
                }
                prop_assert!(open.len() < allowed.max(2));
                for item in wanted.keys() {
                    let times = open.values().filter(|items| items.contains(item)).count();
                    prop_assert_eq!(times, usize::from(!change.left_out.contains(item)), "{}", item);
                }
            }
        }
    }
}
