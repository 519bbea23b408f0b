use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const START: Timestamp = 1_700_000_000;

fn key(n: u8) -> JobKey {
    JobKey::new([n; 16])
}

fn peer(n: u8) -> RelayUrl {
    format!("wss://p{n}.example").parse().unwrap()
}

fn every(seconds: u64, at: u8) -> Plan {
    Plan { when: When::Every(seconds), peer: peer(at), last_start: None, last_whole: None }
}

fn scheduler(plans: impl IntoIterator<Item = (JobKey, Plan)>) -> Scheduler {
    let mut scheduler = Scheduler::new(Bounds { jobs: 4, jobs_per_peer: 2 });
    scheduler.set(plans.into_iter().collect(), START, || 0.5);
    scheduler
}

fn ready(_: &RelayUrl) -> Option<Timestamp> {
    None
}

fn all(scheduler: &mut Scheduler, now: Timestamp) -> Vec<JobKey> {
    std::iter::from_fn(|| scheduler.poll(now, ready)).map(|start| start.job).collect()
}

#[test]
fn first_runs_are_spread_and_later_ones_keep_the_interval() {
    let mut scheduler = scheduler([(key(1), every(300, 1))]);
    assert_eq!(all(&mut scheduler, START), []);
    assert_eq!(scheduler.next_due(START, ready), Some(START + 15));
    assert_eq!(all(&mut scheduler, START + 15), [key(1)]);
    assert_eq!(all(&mut scheduler, START + 900), [], "it still runs");
    // Half of a twentieth is jitter; the time that was missed is made up for once.
    assert_eq!(scheduler.ended(key(1), true, START + 20, 0.5), Some(START + 15 + 300 + 8));
}

#[test]
fn bounds_hold_in_all_and_per_peer() {
    let mut scheduler = scheduler((0..6).map(|n| (key(n), every(60, u8::from(n > 2)))));
    assert_eq!(all(&mut scheduler, START + 60).len(), 4);
    let mut scheduler = super::tests::scheduler((0..6).map(|n| (key(n), every(60, 0))));
    assert_eq!(all(&mut scheduler, START + 60).len(), 2);
}

#[test]
fn one_peers_trouble_does_not_delay_another() {
    let mut scheduler = scheduler([(key(1), every(60, 1)), (key(2), every(60, 2))]);
    let down = |url: &RelayUrl| (*url == peer(1)).then_some(START + 5000);
    assert_eq!(scheduler.poll(START + 60, down).map(|start| start.job), Some(key(2)));
    assert_eq!(scheduler.poll(START + 60, down), None);
    assert_eq!(scheduler.next_due(START + 60, down), Some(START + 5000));
}

#[test]
fn a_gap_during_a_run_leads_to_one_more_run() {
    let mut scheduler = scheduler([(key(1), Plan { when: When::Manual, ..every(60, 1) })]);
    assert_eq!(all(&mut scheduler, START + 9999), [], "only when asked");
    scheduler.ask(key(1), START + 10);
    assert_eq!(all(&mut scheduler, START + 10), [key(1)]);
    scheduler.ask(key(1), START + 11);
    scheduler.ask(key(1), START + 12);
    assert_eq!(scheduler.ended(key(1), true, START + 13, 0.0), Some(START + 13));
    assert_eq!(all(&mut scheduler, START + 13), [key(1)]);
    assert_eq!(scheduler.ended(key(1), true, START + 14, 0.0), None);
}

#[test]
fn cron_times_are_utc_and_missed_ones_run_once() {
    let cron = When::Cron(Box::new("0 3 * * *".parse().unwrap()));
    let mut scheduler = scheduler([(key(1), Plan { when: cron, ..every(60, 1) })]);
    // 1,700,000,000 is 2023-11-14 22:13:20 UTC.
    let three = START + 4 * 3600 + 46 * 60 + 40;
    assert_eq!(scheduler.next_due(START, ready), Some(three));
    assert_eq!(all(&mut scheduler, three - 1), []);
    // The machine slept for three days.
    assert_eq!(all(&mut scheduler, three + 3 * 86_400 + 60), [key(1)]);
    assert_eq!(scheduler.ended(key(1), true, three + 3 * 86_400 + 90, 0.0), Some(three + 4 * 86_400));
}

#[test]
fn a_restart_keeps_the_time_of_a_job_that_ran_shortly_before() {
    let plan = Plan { last_start: Some(START - 100), last_whole: Some(START - 100), ..every(300, 1) };
    let mut scheduler = scheduler([(key(1), plan)]);
    assert_eq!(scheduler.next_due(START, ready), Some(START + 200));
    assert_eq!(scheduler.poll(START + 200, ready), Some(Start { job: key(1), whole: false }));
}

#[test]
fn the_whole_filter_has_its_turn_once_a_day() {
    let mut scheduler = scheduler([(key(1), every(3600, 1))]);
    let mut wholes = Vec::new();
    let mut now = START;
    while now < START + 5 * 86_400 {
        now = scheduler.next_due(now, ready).unwrap();
        let start = scheduler.poll(now, ready).unwrap();
        if start.whole {
            wholes.push(now);
        }
        scheduler.ended(key(1), start.whole, now + 5, 0.3);
    }
    assert!(wholes[0] < START + 60, "the first run is a whole one");
    assert!((5..=6).contains(&wholes.len()), "{wholes:?}");
    assert!(wholes.windows(2).all(|pair| (23 * 3600..=26 * 3600).contains(&(pair[1] - pair[0]))));
}

#[test]
fn a_reload_disturbs_nothing_that_stays() {
    let mut scheduler = scheduler([(key(1), every(300, 1)), (key(2), every(300, 1)), (key(3), every(300, 2))]);
    assert_eq!(all(&mut scheduler, START + 15).len(), 3);
    scheduler.ended(key(1), true, START + 20, 0.0);
    let before = scheduler.due(key(1));
    let plans = [(key(1), every(300, 1)), (key(3), every(60, 2)), (key(4), every(300, 2))];
    scheduler.set(plans.into_iter().collect(), START + 30, || 0.0);
    assert_eq!(scheduler.due(key(1)), before);
    assert_eq!(scheduler.ended(key(2), true, START + 40, 0.0), None, "gone, and let go of when it ended");
    assert_eq!(scheduler.due(key(2)), None);
    assert_eq!(all(&mut scheduler, START + 50), [key(4)], "the new one; 3 still runs");
    assert_eq!(scheduler.ended(key(3), true, START + 60, 0.0), Some(START + 15 + 60), "with its new interval");
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Back(u64),
    Ask(u8),
    End(u8, bool),
    Outage(u8, u64),
    Reload(BTreeSet<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1_u64..4000).prop_map(Step::Pass),
        1 => (1_u64..100_000).prop_map(Step::Back),
        1 => (0_u8..6).prop_map(Step::Ask),
        6 => (0_u8..6, any::<bool>()).prop_map(|(job, whole)| Step::End(job, whole)),
        1 => (0_u8..3, 1_u64..20_000).prop_map(|(peer, until)| Step::Outage(peer, until)),
        1 => prop::collection::btree_set(0_u8..6, 1..6).prop_map(Step::Reload),
    ]
}

proptest! {
    /// A week of runs, outages, clock jumps and reloads: no job runs twice at once, bounds hold,
    /// and every job that is configured is due within its interval, or explained by an outage.
    #[test]
    fn a_simulated_week(steps in prop::collection::vec(step(), 1..400), seed: u64) {
        let mut state = seed | 1;
        let mut luck = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f64::from((state >> 40) as u32) / f64::from(1_u32 << 24)
        };
        let interval = |n: u8| 60 * (u64::from(n) + 1);
        let mut scheduler = Scheduler::new(Bounds { jobs: 3, jobs_per_peer: 2 });
        let mut configured: BTreeSet<u8> = (0..6).collect();
        let plans = |jobs: &BTreeSet<u8>| jobs.iter().map(|n| (key(*n), every(interval(*n), n % 3))).collect();
        let mut now = START;
        let mut running: BTreeSet<u8> = BTreeSet::new();
        let mut outages: HashMap<RelayUrl, Timestamp> = HashMap::new();
        scheduler.set(plans(&configured), now, &mut luck);
        for step in steps {
            match step {
                Step::Pass(seconds) => now += seconds,
                Step::Back(seconds) => now -= seconds.min(now - 1_000_000_000),
                Step::Ask(job) => scheduler.ask(key(job), now),
                Step::End(job, whole) => {
                    if running.remove(&job) {
                        let due = scheduler.ended(key(job), whole, now, luck());
                        prop_assert_eq!(due.is_some(), configured.contains(&job));
                        prop_assert!(due.is_none_or(|due| due <= now + interval(job) * 21 / 20 + 1));
                    }
                }
                Step::Outage(at, seconds) => {
                    outages.insert(peer(at), now + seconds);
                }
                Step::Reload(jobs) => {
                    configured = jobs;
                    scheduler.set(plans(&configured), now, &mut luck);
                }
            }
            let up = |url: &RelayUrl| outages.get(url).copied().filter(|until| *until > now);
            while let Some(start) = scheduler.poll(now, up) {
                let job = start.job.as_bytes()[0];
                prop_assert!(running.insert(job), "job {} runs twice", job);
                prop_assert!(configured.contains(&job));
                prop_assert_eq!(up(&peer(job % 3)), None);
            }
            prop_assert!(running.len() <= 3);
            for at in 0..3 {
                prop_assert!(running.iter().filter(|job| *job % 3 == at).count() <= 2);
            }
            // Nothing is forgotten: what does not run has its time.
            for job in configured.difference(&running) {
                let due = scheduler.due(key(*job));
                prop_assert!(due.is_some_and(|due| due <= now + interval(*job) * 21 / 20 + 1), "{:?} at {}", due, now);
            }
            // What is overdue and does not run is kept by an outage or by a bound.
            if running.len() < 3 {
                for job in configured.difference(&running) {
                    let overdue = scheduler.due(key(*job)).is_some_and(|due| due <= now);
                    let held = up(&peer(job % 3)).is_some()
                        || running.iter().filter(|other| *other % 3 == job % 3).count() == 2;
                    prop_assert!(!overdue || held);
                }
            }
        }
    }
}
