//! Two real relays on loopback, a few thousand signed events, one real sync, and the proof.
//!
//! `cargo run --release --example demo`: it needs no file and no network, and ends by itself.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::{Ipv4Addr, TcpListener};

use nostr_relay_builder::prelude::*;
use tieline::app::Relays;
use tieline::cli::table;
use tieline::job::{Job, RunOptions};
use tieline::job_spec::{Direction, JobSpec, Limits, RelativeTime, StrategyChoice};
use tieline::nostr::RelayUrl as Url;
use tokio_util::sync::CancellationToken;

/// When the first of the demo's events was made.
const START: u64 = 1_700_000_000;

/// A relay, and a look into its database that no relay protocol stands between.
struct DemoRelay {
    url: Url,
    database: MemoryDatabase,
    _running: LocalRelay,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (local, peer) = (DemoRelay::start().await?, DemoRelay::start().await?);
    println!("Two relays: {} (local) and {} (peer). Signing events for them…", local.url, peer.url);
    fill(&local, &peer).await?;
    println!("Before: {} events here, {} there, {} in both.\n", local.count().await?, peer.count().await?, {
        local.ids().await?.intersection(&peer.ids().await?).count()
    });

    let relays = Relays::plain([&local.url, &peer.url])?;
    let spec = JobSpec {
        peer: "peer".into(),
        name: "everything".into(),
        local_url: local.url.clone(),
        peer_url: peer.url.clone(),
        filter: r#"{"kinds":[0,1,5,7,30023]}"#.parse()?,
        relative: RelativeTime::default(),
        direction: Direction::Both,
        strategy: StrategyChoice::Auto,
        exclude: Vec::new(),
        limits: Limits::default(),
    };
    let (here, there) = relays.both(&spec).ok_or("both relays were just named")?;
    let (job, _progress) = Job::new(spec.clone(), here, there, None, RunOptions::default());
    let first = job.run(CancellationToken::new()).await;
    let (job, _progress) = Job::new(spec.clone(), here, there, None, RunOptions::default());
    let second = job.run(CancellationToken::new()).await;
    println!("One sync, and the same again to see that nothing is left to do:\n{}\n", table(&[first, second]));

    let (left, right) = (local.ids().await?, peer.ids().await?);
    println!("After: {} events here, {} there.", left.len(), right.len());
    if left != right {
        return Err(format!("{} events are on one side only", left.symmetric_difference(&right).count()).into());
    }
    println!("Both relays hold exactly the same events, read from their databases and compared id by id.");
    Ok(())
}

/// Gives both relays something in common and each something of its own.
async fn fill(local: &DemoRelay, peer: &DemoRelay) -> Result<(), Box<dyn Error>> {
    let authors: Vec<Keys> = (0..5).map(|_| Keys::generate()).collect();
    let sign = |number: u64, builder: EventBuilder| {
        let author = &authors[usize::try_from(number % 5).unwrap_or_default()];
        builder.custom_created_at(Timestamp::from(START + number)).sign_with_keys(author)
    };
    for number in 0..4000_u64 {
        let event = match number % 20 {
            0 => sign(
                number,
                EventBuilder::new(Kind::LongFormTextNote, "an article").tag(Tag::identifier(number.to_string())),
            ),
            1 => sign(number, EventBuilder::new(Kind::Reaction, "+")),
            _ => sign(number, EventBuilder::text_note(format!("note {number}"))),
        }?;
        // Three in four are everywhere; of the rest, half are here and half are there.
        if number % 8 != 3 {
            local.add(&event).await?;
        }
        if number % 8 != 7 {
            peer.add(&event).await?;
        }
    }
    // A profile whose newer version only the peer has.
    local.add(&sign(5000, EventBuilder::new(Kind::Metadata, r#"{"name":"old"}"#))?).await?;
    peer.add(&sign(5005, EventBuilder::new(Kind::Metadata, r#"{"name":"new"}"#))?).await?;
    // Notes that their author deleted here; the peer has not heard of it.
    for number in 6000..6010 {
        let note = sign(number, EventBuilder::text_note("to be deleted"))?;
        let deletion = sign(number + 100, EventBuilder::delete(EventDeletionRequest::new().id(note.id)))?;
        peer.add(&note).await?;
        local.add(&deletion).await?;
    }
    Ok(())
}

impl DemoRelay {
    async fn start() -> Result<Self, Box<dyn Error>> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let database = MemoryDatabase::with_opts(MemoryDatabaseOptions { events: true, max_events: None });
        let unlimited = RateLimit { max_reqs: 1000, notes_per_minute: u32::MAX };
        let relay =
            LocalRelay::new(RelayBuilder::default().port(port).database(database.clone()).rate_limit(unlimited));
        relay.run().await?;
        let url = relay.url().await.to_string().parse()?;
        Ok(Self { url, database, _running: relay })
    }

    async fn add(&self, event: &Event) -> Result<(), Box<dyn Error>> {
        self.database.save_event(event).await?;
        Ok(())
    }

    async fn ids(&self) -> Result<BTreeSet<EventId>, Box<dyn Error>> {
        let events = self.database.query(Filter::new()).await?;
        Ok(events.into_iter().map(|event| event.id).collect())
    }

    async fn count(&self) -> Result<usize, Box<dyn Error>> {
        Ok(self.ids().await?.len())
    }
}
