//! Both sides are listed, and compared second by second.

use std::cmp::Ordering;

use super::ledger::Ledger;
use super::pager::Pager;
use super::strategy::{Limits, Strategy};
use super::window::Window;
use super::{Head, Page, Question, ReconcileError};
use crate::job_spec::Side;
use crate::outcome::BySide;

/// Two listings on their way down, side by side. Only the one that is behind is asked on, so that
/// no more than a few pages, or a dense second, are held.
#[derive(Debug)]
pub(super) struct Paged {
    window: Window,
    pagers: BySide<Pager>,
    /// What is listed and not compared yet, newest first.
    heads: BySide<Vec<Head>>,
}

impl Paged {
    pub fn new(window: Window, limits: &Limits, ledger: &Ledger) -> Self {
        let pager = |side| limits.pager(side, window.filter(), window.high(), ledger);
        let pagers = BySide { local: pager(Side::Local), peer: pager(Side::Peer) };
        Self { window, pagers, heads: BySide::default() }
    }

    /// Compares what is complete on both sides.
    fn settle(&mut self, ledger: &mut Ledger) {
        let from = self.pagers.local.complete_from().max(self.pagers.peer.complete_from());
        let mut take = |side| {
            let heads: &mut Vec<Head> = &mut self.heads[side];
            let rest = heads.split_off(heads.partition_point(|head| head.created_at >= from));
            std::mem::replace(heads, rest)
        };
        difference(take(Side::Local), take(Side::Peer), ledger);
    }
}

impl Strategy for Paged {
    fn name(&self) -> &'static str {
        "paged"
    }

    fn question(&mut self, side: Side) -> Option<Question> {
        let behind = self.pagers[side].complete_from() >= self.pagers[side.other()].complete_from();
        if behind { self.pagers[side].next_question() } else { None }
    }

    fn on_page(&mut self, side: Side, page: Page, ledger: &mut Ledger) -> Result<(), ReconcileError> {
        let pager = &mut self.pagers[side];
        let heads = pager.take(page).map_err(|error| ReconcileError::Listing { side, error })?;
        ledger.note_page(side, pager, !heads.is_empty());
        self.heads[side].extend(heads);
        self.settle(ledger);
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.pagers.local.is_done() && self.pagers.peer.is_done()
    }

    fn unsettled(&self) -> Window {
        self.window.clone()
    }
}

/// Reports what is in one of two sets only.
pub(super) fn difference(mut local: Vec<Head>, mut peer: Vec<Head>, ledger: &mut Ledger) {
    local.sort_unstable();
    peer.sort_unstable();
    let (mut local, mut peer) = (local.into_iter().peekable(), peer.into_iter().peekable());
    loop {
        let order = match (local.peek(), peer.peek()) {
            (Some(a), Some(b)) => a.cmp(b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return,
        };
        let on_local = if order.is_le() { local.next() } else { None };
        let on_peer = if order.is_ge() { peer.next() } else { None };
        match (on_local, on_peer) {
            (Some(head), None) => ledger.report(Side::Local, head.id),
            (None, Some(head)) => ledger.report(Side::Peer, head.id),
            _ => {}
        }
    }
}
