//! Faults in a random order, for as long as one likes: after each of them the books
//! must be right. `make soak MINUTES=30 SEED=7`; the seed gives the same faults in the
//! same order again (not the same microsecond).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use postonce_tests::{
    Consumer, Flow, Kafka, Ledger, Message, PrivatePostgres, Proxy, QUICK, Sender, Transaction, Trial, load, payments,
    start_postgres, trials,
};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub fn tests() -> Vec<Trial> {
    trials![survives_faults_in_any_order]
}

/// For one fault and all that follows from it, on a slow machine.
const LIMIT: Duration = Duration::from_secs(120);
const MINUTES: &str = "POSTONCE_SOAK_MINUTES";
const SEED: &str = "POSTONCE_SOAK_SEED";

/// What happens to the system, while messages go on coming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// SIGKILL, and another in its place.
    KillConsumer,
    /// Frozen until the group has thrown it out, then let go on: a zombie.
    FreezeConsumer,
    /// SIGTERM, and another in its place.
    ReplaceConsumer,
    /// One more joins the group for a while.
    JoinAndLeave,
    StopPostgres,
    KillPostgres,
    /// Every session ends where it stands.
    EndSessions,
    /// No way from one consumer to the database, for a moment or for longer than a life.
    CutOff,
    StopBroker,
    KillBroker,
    /// Messages that were never committed, and markers.
    AbortTransaction,
}

const FAULTS: [Fault; 11] = [
    Fault::KillConsumer,
    Fault::FreezeConsumer,
    Fault::ReplaceConsumer,
    Fault::JoinAndLeave,
    Fault::StopPostgres,
    Fault::KillPostgres,
    Fault::EndSessions,
    Fault::CutOff,
    Fault::StopBroker,
    Fault::KillBroker,
    Fault::AbortTransaction,
];

fn survives_faults_in_any_order() -> Result<()> {
    let minutes: f64 = setting(MINUTES, 2.0)?;
    let seed: u64 = setting(SEED, 1)?;
    eprintln!("soak: {minutes} minutes with seed {seed}; again: make soak MINUTES={minutes} SEED={seed}");
    let until = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let mut world = World::start(seed)?;
    let (mut rounds, mut to_come) = (0, Vec::new());
    while Instant::now() < until {
        rounds += 1;
        // Each of them once, before one comes again.
        if to_come.is_empty() {
            to_come = FAULTS.to_vec();
            to_come.shuffle(&mut world.random);
        }
        let fault = to_come.pop().context("no faults")?;
        let began = Instant::now();
        world.round(rounds, fault).with_context(|| format!("seed {seed}, round {rounds}: {fault:?}"))?;
        eprintln!("soak: round {rounds}: {fault:?} survived, {:.1} s", began.elapsed().as_secs_f64());
    }
    let offsets = world.flow.ledger.offsets()?;
    world.end().with_context(|| format!("seed {seed}, after {rounds} rounds"))?;
    eprintln!("soak: {rounds} faults survived over {offsets} offsets, seed {seed}");
    Ok(())
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> Result<T> {
    match std::env::var(name) {
        Ok(text) => text.parse().ok().with_context(|| format!("{name}={text} is no number")),
        Err(_) => Ok(default),
    }
}

/// Everything of its own, so that all of it may break.
struct World {
    random: ChaCha8Rng,
    kafka: Kafka,
    postgres: PrivatePostgres,
    flow: Flow,
    proxy: Proxy,
    /// The first goes through the proxy.
    consumers: Vec<Consumer>,
}

impl World {
    fn start(seed: u64) -> Result<Self> {
        let (kafka, postgres) = (Kafka::start()?, start_postgres(&[])?);
        let flow = Flow::new(&kafka, Ledger::fresh_in(&postgres, "soak")?, "soak", 4)?;
        let proxy = Proxy::start(&flow.ledger.url)?;
        // Otherwise hardly a fault would meet a transaction that is under way.
        flow.ledger.slow_down(0.02)?;
        let mut world =
            Self { random: ChaCha8Rng::seed_from_u64(seed), kafka, postgres, flow, proxy, consumers: Vec::new() };
        world.consumers = vec![world.consumer(0)?, world.consumer(1)?];
        Ok(world)
    }

    fn consumer(&self, number: usize) -> Result<Consumer> {
        let more = [&QUICK[..], &["--workers", "2", "--batch", "500"]].concat();
        let url = if number == 0 { self.proxy.url() } else { &self.flow.ledger.url };
        self.flow.consume_through(url, &more)
    }

    /// A load, a fault in the middle of it, and then the question whether all is well.
    fn round(&mut self, number: u64, fault: Fault) -> Result<()> {
        let seed = self.random.random();
        self.under_load(seed, |world| world.happen(fault))?;
        self.flow.send(payments(&format!("round_{number}"), 100)).context("after the fault")?;
        self.flow.wait_done(LIMIT)?;
        for consumer in &mut self.consumers {
            ensure!(consumer.is_running()?, "a consumer has ended");
            consumer.wait_ready(200, LIMIT)?;
        }
        // Nobody sends: nothing is written any more.
        self.flow.ledger.check()?;
        self.flow.ledger.check_message_chain(&self.kafka.bootstrap(), &self.flow.topic)
    }

    /// Messages go on coming while `what` happens. While the broker is away they wait.
    fn under_load(&mut self, seed: u64, what: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (sender, topic) = (Sender::new(&self.kafka.bootstrap(), "lz4")?, self.flow.topic.clone());
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let producer = scope.spawn(|| {
                for part in 0.. {
                    sender.send(&topic, load(100, seed.wrapping_add(part))?)?;
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::sleep(Duration::from_millis(20));
                }
                Ok(())
            });
            self.pause(100, 1_000);
            let happened = what(self);
            stop.store(true, Ordering::Relaxed);
            happened.and(producer.join().map_err(|_| anyhow::anyhow!("the producer panicked"))?)
        })
    }

    fn happen(&mut self, fault: Fault) -> Result<()> {
        let which = self.random.random_range(0..self.consumers.len());
        match fault {
            Fault::KillConsumer => {
                self.consumers[which].kill()?;
                self.consumers[which] = self.consumer(which)?;
            }
            Fault::FreezeConsumer => {
                self.consumers[which].freeze()?;
                self.pause(500, 4_000);
                self.consumers[which].thaw()?;
            }
            Fault::ReplaceConsumer => {
                let new = self.consumer(which)?;
                std::mem::replace(&mut self.consumers[which], new).finish()?;
            }
            Fault::JoinAndLeave => {
                let third = self.consumer(2)?;
                self.pause(0, 3_000);
                third.finish()?;
            }
            Fault::StopPostgres => self.stop_postgres(PrivatePostgres::stop_fast)?,
            Fault::KillPostgres => self.stop_postgres(PrivatePostgres::kill_postmaster)?,
            Fault::EndSessions => {
                for _ in 0..self.random.random_range(1..5) {
                    self.flow.ledger.db.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'postonce-worker'",
                    )?;
                    self.pause(0, 300);
                }
            }
            Fault::CutOff => {
                self.proxy.refuse();
                self.pause(0, 12_000);
                self.proxy.accept();
            }
            Fault::StopBroker => self.stop_broker(Kafka::stop)?,
            Fault::KillBroker => self.stop_broker(Kafka::kill)?,
            Fault::AbortTransaction => {
                let transaction = Transaction::begin(&self.kafka.bootstrap())?;
                let never = (0..50).map(|n| Message::new(format!("never committed {n}")));
                transaction.send(&self.flow.topic, never)?;
                transaction.abort()?;
            }
        }
        Ok(())
    }

    fn stop_postgres(&mut self, way: fn(&mut PrivatePostgres) -> Result<()>) -> Result<()> {
        way(&mut self.postgres)?;
        self.pause(0, 3_000);
        self.postgres.start_again()
    }

    fn stop_broker(&mut self, way: fn(&mut Kafka) -> Result<()>) -> Result<()> {
        way(&mut self.kafka)?;
        self.pause(0, 3_000);
        self.kafka.start_again()
    }

    /// A fault lasts for a while that the seed decides.
    fn pause(&mut self, least: u64, most: u64) {
        thread::sleep(Duration::from_millis(self.random.random_range(least..most)));
    }

    fn end(self) -> Result<()> {
        for consumer in self.consumers {
            consumer.finish()?;
        }
        // Partitions have changed hands, but each resource has stayed on its own.
        self.flow.check_against_undisturbed()
    }
}
