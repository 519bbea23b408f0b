use std::time::Duration;

use super::*;
use crate::nostr::Filter;

const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

struct Bench {
    session: Session,
    now: Instant,
    meter: Arc<Meter>,
}

impl Bench {
    fn new(can_sign: bool) -> Self {
        let session = Session::new(SessionLimits {
            max_subscriptions: 2,
            answer: Duration::from_secs(30),
            neg_open: Duration::from_secs(10),
            cooldown: Duration::from_secs(65),
            can_sign,
        });
        Self { session, now: crate::clock::instant(), meter: Arc::default() }
    }

    fn req(&mut self, token: Token) {
        let filter = Filter::of_kind(1);
        let request = Request::Req { filter, limit: 10, quota: 3 };
        self.session.request(token, request, self.meter.clone(), self.now);
    }

    fn neg(&mut self, token: Token) {
        let request = Request::NegOpen { filter: Filter::of_kind(1), message: vec![0x61] };
        self.session.request(token, request, self.meter.clone(), self.now);
    }

    fn publish(&mut self, token: Token) {
        let request = Request::Publish { id: ID.parse().unwrap(), raw: "{}".into() };
        self.session.request(token, request, self.meter.clone(), self.now);
    }

    fn hear(&mut self, frame: &str) {
        self.session.receive(frame, self.now);
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.session.tick(self.now);
    }

    fn sent(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.session.poll_frame()).collect()
    }

    /// Verbs and names of what was sent.
    fn verbs(&mut self) -> Vec<String> {
        let short = |frame: String| {
            frame.split(['"', ',', '[']).filter(|s| !s.is_empty()).take(2).collect::<Vec<_>>().join(" ")
        };
        self.sent().into_iter().map(short).collect()
    }

    fn heard(&mut self) -> Vec<(Token, Delivery)> {
        std::iter::from_fn(|| self.session.poll_delivery()).collect()
    }

    fn only(&mut self) -> Delivery {
        let mut heard = self.heard();
        assert_eq!(heard.len(), 1, "{heard:?}");
        heard.remove(0).1
    }
}

#[test]
fn a_req_runs_to_its_eose_and_is_closed() {
    let mut bench = Bench::new(false);
    bench.req(7);
    assert_eq!(bench.sent(), [r#"["REQ","r1",{"kinds":[1],"limit":10}]"#]);
    bench.hear(r#"["EOSE","r1",["finish"]]"#);
    assert!(matches!(bench.only(), Delivery::End { received: 0, hint: Some(EoseHint::Finish) }));
    assert_eq!(bench.verbs(), ["CLOSE r1"]);
    // rust-nostr answers a CLOSE with a CLOSED of its own: no error.
    bench.hear(r#"["CLOSED","r1",""]"#);
    bench.hear(r#"["EOSE","other"]"#);
    assert!(bench.heard().is_empty() && bench.session.is_idle());
}

#[test]
fn a_third_subscription_waits_for_a_free_place() {
    let mut bench = Bench::new(false);
    (1..=3).for_each(|token| bench.req(token));
    assert_eq!(bench.verbs(), ["REQ r1", "REQ r2"]);
    bench.hear(r#"["EOSE","r2"]"#);
    assert_eq!(bench.verbs(), ["CLOSE r2", "REQ r3"]);
    bench.wait(20);
    bench.session.close(1, bench.now);
    assert_eq!(bench.verbs(), ["CLOSE r1"]);
}

#[test]
fn chatter_does_not_move_a_deadline() {
    let mut bench = Bench::new(false);
    bench.req(1);
    for _ in 0..3 {
        bench.wait(9);
        bench.hear(r#"["NOTICE","still here"]"#);
        bench.hear(r#"["EVENT","other",{}]"#);
        bench.hear(r#"["EVENT","r1",{"id":"nonsense"}]"#);
    }
    assert!(bench.heard().is_empty());
    bench.wait(4);
    assert!(matches!(bench.only(), Delivery::Failed(Failure::TimedOut(_))));
}

#[test]
fn more_events_than_the_quota_are_a_flood() {
    let mut bench = Bench::new(false);
    bench.req(1);
    for _ in 0..4 {
        bench.hear(r#"["EVENT","r1",{}]"#);
    }
    assert!(matches!(bench.only(), Delivery::Failed(Failure::Flood)));
    assert_eq!(bench.verbs(), ["REQ r1", "CLOSE r1"]);
}

#[test]
fn an_event_under_a_wrong_id_is_reported_under_it() {
    let mut bench = Bench::new(false);
    bench.req(1);
    bench.hear(&format!(r#"["EVENT","r1",{{"id":"{ID}","kind":-1}}]"#));
    assert!(matches!(bench.only(), Delivery::Invalid(id) if id.to_string() == ID));
}

#[test]
fn auth_is_answered_once_and_the_request_sent_once_more() {
    let mut bench = Bench::new(true);
    bench.req(1);
    bench.sent();
    bench.hear(r#"["CLOSED","r1","ERROR: auth-required: who are you"]"#);
    assert_eq!(bench.session.challenge(), None, "the challenge is still to come");
    bench.hear(r#"["AUTH","old"]"#);
    bench.hear(r#"["AUTH","new"]"#);
    assert_eq!(bench.session.challenge(), Some("new"));
    bench.session.authenticate(ID.parse().unwrap(), "{}", bench.now);
    assert_eq!(bench.sent(), [r#"["AUTH",{}]"#]);
    bench.hear(&format!(r#"["OK","{ID}",true,""]"#));
    assert_eq!(bench.verbs(), ["REQ r1"]);
    bench.hear(r#"["CLOSED","r1","auth-required: still no"]"#);
    assert!(matches!(bench.only(), Delivery::Failed(Failure::AuthRefused(_))));
}

#[test]
fn without_a_key_a_demand_for_auth_is_final() {
    let mut bench = Bench::new(false);
    bench.publish(1);
    bench.hear(&format!(r#"["OK","{ID}",false,"auth-required: who are you"]"#));
    assert!(matches!(bench.only(), Delivery::Failed(Failure::AuthRefused(_))));
}

#[test]
fn a_refused_or_unanswered_auth_fails_all_who_wait_for_it() {
    for answer in [Some(format!(r#"["OK","{ID}",false,"restricted: not you"]"#)), None] {
        let mut bench = Bench::new(true);
        bench.hear(r#"["AUTH","c"]"#);
        bench.req(1);
        bench.neg(2);
        bench.hear(r#"["CLOSED","r1","auth-required: x"]"#);
        bench.hear(r#"["NEG-ERR","n2","auth-required: x"]"#);
        bench.session.authenticate(ID.parse().unwrap(), "{}", bench.now);
        match answer {
            Some(frame) => bench.hear(&frame),
            None => bench.wait(31),
        }
        let heard = bench.heard();
        assert_eq!(heard.len(), 2);
        assert!(heard.iter().all(|(_, delivery)| matches!(delivery, Delivery::Failed(Failure::AuthRefused(_)))));
    }
}

#[test]
fn a_challenge_that_ended_before_its_answer_came_is_answered_anew() {
    let mut bench = Bench::new(true);
    bench.req(1);
    bench.hear(r#"["AUTH","c0"]"#);
    bench.hear(r#"["CLOSED","r1","auth-required: x"]"#);
    for next in ["c1", "c2", "c3"] {
        bench.session.authenticate(ID.parse().unwrap(), "{}", bench.now);
        bench.hear(&format!(r#"["AUTH","{next}"]"#));
        bench.hear(&format!(r#"["OK","{ID}",false,"restricted: not the challenge"]"#));
        assert!(bench.heard().is_empty());
        assert_eq!(bench.session.challenge(), Some(next));
    }
    // Not for ever.
    bench.session.authenticate(ID.parse().unwrap(), "{}", bench.now);
    bench.hear(r#"["AUTH","c4"]"#);
    bench.hear(&format!(r#"["OK","{ID}",false,"restricted: not the challenge"]"#));
    assert!(matches!(bench.only(), Delivery::Failed(Failure::AuthRefused(_))));
}

#[test]
fn a_neg_open_is_refused_in_many_ways() {
    type Row = (&'static str, fn(&NegRefusal) -> bool);
    let table: [Row; 6] = [
        (r#"["NEG-ERR","n1","blocked: too many (9 > 5)"]"#, |r| matches!(r, NegRefusal::TooBig { max: Some(5), .. })),
        (r#"["CLOSED","n1","restricted: no"]"#, |r| matches!(r, NegRefusal::Restricted(_))),
        (r#"["NOTICE","ERROR: bad msg: unknown cmd"]"#, |r| matches!(r, NegRefusal::Unsupported(_))),
        (r#"["NOTICE","too many concurrent NEG requests"]"#, |r| matches!(r, NegRefusal::Busy(_))),
        (r#"["NEG-ERR","n1","closed: idle"]"#, |r| matches!(r, NegRefusal::Broken(_))),
        ("", |r| matches!(r, NegRefusal::Silent)),
    ];
    for (frame, expected) in table {
        let mut bench = Bench::new(false);
        bench.neg(1);
        if frame.is_empty() {
            bench.wait(10)
        } else {
            bench.hear(frame)
        }
        let Delivery::NegRefused(refusal) = bench.only() else { panic!("{frame}") };
        assert!(expected(&refusal), "{frame}: {refusal:?}");
    }
}

#[test]
fn a_session_goes_on_until_it_is_closed() {
    let mut bench = Bench::new(false);
    bench.neg(1);
    bench.hear(r#"["NEG-MSG","n1","6100"]"#);
    assert!(matches!(bench.only(), Delivery::NegMessage(message) if message == [0x61, 0]));
    bench.wait(600);
    bench.hear(r#"["NOTICE","invalid: something else"]"#);
    assert!(bench.heard().is_empty(), "between queries there is no deadline, and no NOTICE is about it");
    bench.session.neg_message(1, vec![0x61], bench.now);
    bench.wait(31);
    assert!(matches!(bench.only(), Delivery::NegRefused(NegRefusal::Broken(_))));
    assert_eq!(bench.verbs(), ["NEG-OPEN n1", "NEG-MSG n1", "NEG-CLOSE n1"]);
}

#[test]
fn after_a_demand_to_slow_down_nothing_new_is_sent_for_a_while() {
    let mut bench = Bench::new(false);
    bench.req(1);
    bench.publish(2);
    bench.sent();
    bench.hear(r#"["NOTICE","rate limited, slow down"]"#);
    bench.publish(3);
    bench.wait(64);
    assert!(bench.sent().is_empty());
    bench.wait(2);
    assert_eq!(bench.verbs().len(), 2, "the unanswered REQ again, and the new event");
}

#[test]
fn a_rate_limited_req_is_asked_again_three_times() {
    let mut bench = Bench::new(false);
    bench.req(1);
    for _ in 0..3 {
        assert_eq!(bench.verbs(), ["REQ r1"]);
        bench.hear(r#"["CLOSED","r1","rate-limited: slow"]"#);
        assert!(bench.heard().is_empty());
        bench.wait(66);
    }
    bench.hear(r#"["CLOSED","r1","rate-limited: slow"]"#);
    assert!(matches!(bench.only(), Delivery::Failed(Failure::Closed(_))));
}

#[test]
fn an_ok_for_one_event_is_progress_for_those_behind_it() {
    let mut bench = Bench::new(false);
    bench.publish(1);
    let other = "b".repeat(64);
    let request = Request::Publish { id: other.parse().unwrap(), raw: "{}".into() };
    bench.session.request(2, request, bench.meter.clone(), bench.now);
    bench.wait(29);
    bench.hear(&format!(r#"["OK","{ID}",true,""]"#));
    bench.wait(29);
    assert_eq!(bench.heard().len(), 1);
    bench.hear(r#"["OK","",false,"invalid: which?"]"#);
    assert!(matches!(bench.only(), Delivery::Ack { accepted: false, .. }), "only one can be meant");
}

#[test]
fn one_event_of_two_jobs_is_answered_twice() {
    let mut bench = Bench::new(false);
    bench.publish(1);
    bench.publish(2);
    for token in [1, 2] {
        bench.hear(&format!(r#"["OK","{ID}",true,""]"#));
        assert_eq!(bench.heard()[0].0, token);
    }
}

#[test]
fn a_lost_connection_fails_everything_under_way() {
    let mut bench = Bench::new(false);
    bench.req(1);
    bench.neg(2);
    bench.publish(3);
    bench.session.lost("reset");
    let heard = bench.heard();
    assert_eq!(heard.len(), 3);
    assert!(heard.iter().all(|(_, d)| matches!(d, Delivery::Failed(Failure::Lost(why)) if why == "reset")));
}

/// A slow line: what was sent before is answered first.
#[test]
fn what_queues_behind_others_is_not_late() {
    let ok = format!(r#"["OK","{ID}",true,""]"#);
    let mut bench = Bench::new(false);
    bench.req(1);
    bench.neg(2);
    for n in 10..20 {
        bench.publish(n);
    }
    // OKs come, 5 s apart: neither the listing nor NEG-OPEN is given up.
    for _ in 0..7 {
        bench.hear(&ok);
        bench.wait(5);
    }
    let heard = bench.heard();
    assert_eq!(heard.len(), 7, "{heard:?}");
    assert!(heard.iter().all(|(_, delivery)| matches!(delivery, Delivery::Ack { .. })), "{heard:?}");
    assert!(!bench.session.is_unanswered());
    bench.hear(r#"["EOSE","r1"]"#);
    assert!(matches!(bench.only(), Delivery::End { .. }));
}

#[test]
fn what_is_passed_over_is_given_up_while_others_are_answered() {
    let ok = format!(r#"["OK","{ID}",true,""]"#);
    let mut bench = Bench::new(false);
    bench.req(1);
    let mut seconds = 0;
    for n in 10..60 {
        bench.publish(n);
        bench.hear(&ok);
        bench.wait(5);
        seconds += 5;
        if bench.heard().iter().any(|(token, _)| *token == 1) {
            break;
        }
    }
    assert_eq!(seconds, 120, "four times the wait of 30 s");
}

fn id_of(token: Token) -> EventId {
    EventId::new([u8::try_from(token).unwrap(); 32])
}

#[test]
fn an_event_that_is_passed_over_is_given_up_while_later_ones_are_taken() {
    let publish = |bench: &mut Bench, token: Token| {
        let request = Request::Publish { id: id_of(token), raw: "{}".into() };
        bench.session.request(token, request, bench.meter.clone(), bench.now);
    };
    let mut bench = Bench::new(false);
    publish(&mut bench, 1);
    let mut seconds = 0;
    for token in 2..60 {
        publish(&mut bench, token);
        bench.hear(&format!(r#"["OK","{}",true,""]"#, id_of(token)));
        bench.wait(5);
        seconds += 5;
        if bench.heard().iter().any(|(token, _)| *token == 1) {
            break;
        }
    }
    // One that was sent three waits later was taken, and its own wait and three more are over.
    assert_eq!(seconds, 120);
}

#[test]
fn an_event_waits_as_long_as_those_before_it_are_taken() {
    let mut bench = Bench::new(false);
    for token in 1..100 {
        let request = Request::Publish { id: id_of(token), raw: "{}".into() };
        bench.session.request(token, request, bench.meter.clone(), bench.now);
    }
    for token in 1..100_u8 {
        bench.wait(20);
        bench.hear(&format!(r#"["OK","{}",true,""]"#, id_of(token.into())));
    }
    assert!(bench.heard().iter().all(|(_, delivery)| matches!(delivery, Delivery::Ack { .. })));
}
