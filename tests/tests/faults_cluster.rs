//! Three brokers: what a leader's end leaves whole, and what an unclean election loses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use postonce_tests::{Cluster, Consumer, Flow, Ledger, Trial, payments, read_all, trials, unique};

use crate::faults_traps::ended;

const LIMIT: Duration = Duration::from_secs(90);

pub fn tests() -> Vec<Trial> {
    trials![a_leader_is_killed_under_load, an_unclean_election_is_noticed]
}

fn euros(flow: &Flow) -> Result<i64> {
    flow.ledger.balance("assets:psp:stripe", "EUR")
}

/// Each partition loses its leader once, those in sync become fewer and more again, and
/// nobody needs to know.
fn a_leader_is_killed_under_load() -> Result<()> {
    let mut cluster = Cluster::start()?;
    let replicas: [&[i32]; 3] = [&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]];
    let topic = cluster.topic("led", &replicas, &[("min.insync.replicas", "2")])?;
    let flow = Flow::of(&cluster.bootstrap(), topic, Ledger::fresh("led")?)?;
    flow.send_load(2_000, 31)?;
    let consumer = flow.consume(&["--batch", "200"])?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let producer = scope.spawn(|| -> Result<()> {
            let label = unique("load");
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                flow.send(payments(&format!("{label}_{n}"), 50))?;
            }
            Ok(())
        });
        let outcome = [1, 2].into_iter().try_for_each(|id| {
            let at = flow.ledger.offsets()?;
            flow.wait_offsets(at + 200, LIMIT)?;
            cluster.kill(id)?;
            cluster.wait_led(&flow.topic, "other leaders", |led| led.leader > 0 && led.leader != id)?;
            cluster.wait_led(&flow.topic, "two in sync", |led| led.in_sync.len() == 2)?;
            let at = flow.ledger.offsets()?;
            flow.wait_offsets(at + 200, LIMIT)?;
            cluster.spawn(id)?;
            cluster.wait_led(&flow.topic, "three in sync", |led| led.in_sync == [1, 2, 3])
        });
        stop.store(true, Ordering::Relaxed);
        let sent = producer.join().map_err(|_| anyhow::anyhow!("the producer panicked"))?;
        outcome.and(sent)
    })?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check_against_undisturbed()
}

/// The leader takes messages that its follower has not, they are posted, and the follower
/// becomes the leader without them: other messages then stand at the same offsets.
fn an_unclean_election_is_noticed() -> Result<()> {
    let mut cluster = Cluster::start()?;
    let flow = |label: &str| {
        // Nodes 1 and 2 hold it; 3 only counts votes.
        let config = [("min.insync.replicas", "1"), ("unclean.leader.election.enable", "true")];
        let topic = cluster.topic(label, &[&[1, 2]], &config)?;
        Flow::of(&cluster.bootstrap(), topic, Ledger::fresh(label)?)
    };
    let (running, longer, shorter) = (flow("running")?, flow("longer")?, flow("shorter")?);
    let all = [&running, &longer, &shorter];
    // In a cluster the leaders of other topics may be away: the group must not mind.
    let workers = ["--workers", "1"];
    for flow in all {
        flow.send(payments("both", 10))?;
    }
    let mut consumer = running.consume(&workers)?;
    cluster.kill(2)?;
    for flow in all {
        cluster.wait_led(&flow.topic, "one in sync", |led| led.in_sync == [1])?;
        flow.send(payments("lost", 5))?;
    }
    running.wait_offsets(15, LIMIT)?;
    for flow in [&longer, &shorter] {
        let consumer = flow.consume(&workers)?;
        flow.wait_offsets(15, LIMIT)?;
        consumer.finish()?;
    }
    // It shall meet a log that has grown past its offset, and not one that is shorter.
    consumer.freeze()?;
    cluster.kill(1)?;
    cluster.spawn(2)?;
    for flow in all {
        cluster.wait_led(&flow.topic, "the unclean leader", |led| led.leader == 2)?;
    }
    running.send(payments("other", 20))?;
    longer.send(payments("other", 20))?;
    shorter.send(payments("other", 2))?;
    consumer.thaw()?;

    noticed(&running, consumer, &["cut off before offset 15", "copy the topic into a new one"])?;
    noticed(&longer, longer.consume(&workers)?, &["cut off before offset 15", "copy the topic into a new one"])?;
    noticed(&shorter, shorter.consume(&workers)?, &["ends at offset 12", "goes on at 15"])?;
    // Every start after that, too.
    noticed(&longer, longer.consume(&workers)?, &["cut off before offset 15"])?;
    heals_from_a_copy(&cluster, longer)
}

fn noticed(flow: &Flow, consumer: Consumer, says: &[&str]) -> Result<()> {
    ended(consumer, 12, LIMIT, says)?;
    // Not the auditor: other messages stand where the ones were that were posted.
    flow.ledger.check()?;
    ensure!(flow.ledger.offsets()? == 15, "it has gone on to {}", flow.ledger.offsets()?);
    ensure!(euros(flow)? == 1_500, "{} was posted for 15 payments", euros(flow)?);
    Ok(())
}

/// What the message says helps: in a new topic the old events are duplicates, and the new
/// ones are posted. What Kafka has lost stays in the books.
fn heals_from_a_copy(cluster: &Cluster, mut flow: Flow) -> Result<()> {
    let messages = read_all(&cluster.bootstrap(), &flow.topic)?;
    ensure!(messages.len() == 30, "{} messages are left", messages.len());
    flow.topic = cluster.topic("copy", &[&[2, 3]], &[])?;
    flow.send(messages)?;
    let consumer = flow.consume(&[])?;
    flow.wait_offsets(15 + 30, LIMIT)?;
    consumer.finish()?;
    flow.check()?;
    ensure!(euros(&flow)? == 3_500, "{} for 35 payments", euros(&flow)?);
    Ok(())
}
