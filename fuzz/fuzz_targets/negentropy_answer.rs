//! Two relays that answer negentropy queries with whatever bytes come.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tieline::job_spec::{Side, StrategyChoice};
use tieline::nostr::Filter;
use tieline::outcome::BySide;
use tieline::reconcile::{Action, Answer, Page, Question, Reconciler, Reconciliation, Setup};

fuzz_target!(|answers: Vec<Vec<u8>>| {
    let mut machine = Reconciliation::new(Setup {
        filter: Filter::new(),
        choice: StrategyChoice::Auto,
        now: 1_800_000_000,
        speaks_nip77: BySide { local: true, peer: true },
        page_limit: BySide { local: 500, peer: 500 },
        max_query: BySide { local: 60_000, peer: 60_000 },
        inventory_events: 1000,
    });
    let mut answers = answers.into_iter();
    let mut asked: Vec<(Side, Question)> = Vec::new();
    loop {
        match machine.poll() {
            Some(Action::Ask(side, question)) => asked.push((side, question)),
            Some(Action::Found { .. }) => {}
            Some(Action::Done) => break,
            None => {
                let Some((side, question)) = asked.pop() else { break };
                let answer = match question {
                    Question::Neg { .. } => match answers.next() {
                        Some(bytes) => Answer::Neg(bytes),
                        None => break,
                    },
                    Question::Page { .. } => Answer::Page(Page::default()),
                };
                if machine.handle(side, answer).is_err() {
                    break;
                }
            }
        }
    }
});
