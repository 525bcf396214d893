//! Faults in a random order, for as long as one likes: after each of them everything that
//! can be proved must hold. `make soak MINUTES=30 SEED=7`; the seed gives the same faults in
//! the same order again (not the same microsecond).
//!
//! Not among them, because they end a run: a topic that is made again, retention that takes
//! what is needed, damaged bytes, an unclean election. They stop the consumer for a person,
//! and they take from the topic what every proof here reads from its beginning. They have
//! tests of their own (`faults_accept`, `faults_log`, `faults_cluster`). Nor is a clock that is
//! set: under libfaketime librdkafka's waits end at once, which costs a small machine the
//! time that the other faults need (`faults_clock`).

mod faults;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use faults::{FAULTS, Fault};
use postonce_tests::{
    Consumer, Flow, Kafka, Ledger, Network, PrivatePostgres, Proxy, QUICK, Said, Sender, Trial, load, payments,
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
/// Survives each move of the database to another server.
const LOGIN: &str = "soak:soak";

fn survives_faults_in_any_order() -> Result<()> {
    let minutes: f64 = setting(MINUTES)?.unwrap_or(1.5);
    let seed: u64 = setting(SEED)?.unwrap_or_else(|| rand::random::<u32>().into());
    let again = format!("again: make soak MINUTES={minutes} SEED={seed}");
    let began = Instant::now();
    let say = |what: &str| {
        let seconds = began.elapsed().as_secs();
        eprintln!("soak {seed} {:02}:{:02}  {what}", seconds / 60, seconds % 60);
    };
    say(&format!("{minutes} minutes; {again}"));
    let mut world = World::start(seed).with_context(|| again.clone())?;
    let (mut rounds, mut to_come) = (0, Vec::new());
    while began.elapsed().as_secs_f64() < minutes * 60.0 {
        rounds += 1;
        // Each of them once, before one comes again.
        if to_come.is_empty() {
            to_come = FAULTS.to_vec();
            to_come.shuffle(&mut world.random);
        }
        let fault = to_come.pop().context("no faults")?;
        say(&format!("round {rounds}: {fault:?}"));
        world.round(rounds, fault).with_context(|| format!("seed {seed}, round {rounds}: {fault:?}; {again}"))?;
    }
    let offsets = world.flow.ledger.offsets()?;
    say(&format!("{rounds} faults over {offsets} offsets; the last proofs"));
    world.end().with_context(|| format!("seed {seed}, after {rounds} rounds; {again}"))?;
    say(&format!("{rounds} faults survived over {offsets} offsets"));
    Ok(())
}

fn setting<T: std::str::FromStr>(name: &str) -> Result<Option<T>> {
    match std::env::var(name) {
        Ok(text) => text.parse().map(Some).ok().with_context(|| format!("{name}={text} is no number")),
        Err(_) => Ok(None),
    }
}

/// Everything of its own, so that all of it may break.
struct World {
    random: ChaCha8Rng,
    kafka: Kafka,
    postgres: PrivatePostgres,
    /// The ledger's URL leads here, whichever server holds it.
    home: Network,
    /// The ways of the first consumer: bad ones, and to Postgres over a proxy that knows
    /// statements.
    to_kafka: Network,
    to_postgres: Network,
    statements: Proxy,
    flow: Flow,
    consumers: Vec<Consumer>,
    partitions: usize,
}

impl World {
    fn start(seed: u64) -> Result<Self> {
        let to_kafka = Network::start()?;
        let kafka = Kafka::start_behind(to_kafka.port())?;
        to_kafka.lead_to(kafka.behind_port());
        let postgres = start_postgres(&[])?;
        let (home, to_postgres) = (Network::to(postgres.port())?, Network::to(postgres.port())?);
        let ledger = Ledger::fresh_in(&postgres, "soak")?;
        ledger.db.execute("CREATE ROLE soak SUPERUSER LOGIN PASSWORD 'soak'")?;
        // Otherwise hardly a fault would meet a transaction that is under way.
        ledger.slow_down(0.02)?;
        let (_, place) = ledger.url.rsplit_once('@').context("no @ in the URL")?;
        let url = format!("postgres://{LOGIN}@{place}");
        let statements = Proxy::start(&to_postgres.url(&url)?)?;
        let partitions = 4;
        let flow = Flow::new(&kafka, Ledger::at(&home.url(&url)?), "soak", 4)?;
        let random = ChaCha8Rng::seed_from_u64(seed);
        let consumers = Vec::new();
        let mut world =
            Self { random, kafka, postgres, home, to_kafka, to_postgres, statements, flow, consumers, partitions };
        world.consumers = vec![world.consumer(0)?, world.consumer(1)?];
        // One that cannot ask Kafka anything at its start ends, and whoever watches over it
        // starts it again: no fault before that.
        world.consumers.iter().try_for_each(|consumer| consumer.wait_ready(200, LIMIT))?;
        world.flow.wait_claimed(4)?;
        Ok(world)
    }

    fn consumer(&self, number: usize) -> Result<Consumer> {
        // New partitions are heard of at once, and a request that is lost is given up early.
        let quick = ["topic.metadata.refresh.interval.ms=1000", "socket.timeout.ms=1500", "fetch.wait.max.ms=100"];
        let quick: Vec<&str> = quick.into_iter().flat_map(|property| ["-X", property]).collect();
        let more = [&QUICK[..], &quick, &["--workers", "2", "--batch", "500"]].concat();
        match number {
            0 => self.flow.consume_from(&self.to_kafka.address(), self.statements.url(), &more),
            _ => self.flow.consume(&more),
        }
    }

    /// A load, a fault in the middle of it, and then the question whether all is well.
    fn round(&mut self, number: u64, fault: Fault) -> Result<()> {
        let (seed, also_killed) = (self.random.random(), self.random.random_bool(0.25));
        self.under_load(seed, |world| {
            world.happen(fault)?;
            // Misfortunes do not wait for each other.
            if also_killed { world.happen(Fault::KillConsumer) } else { Ok(()) }
        })?;
        self.flow.send(payments(&format!("round_{number}"), 100)).context("after the fault")?;
        self.flow.wait_done(LIMIT)?;
        for consumer in &mut self.consumers {
            ensure!(consumer.is_running()?, "a consumer has ended");
            consumer.wait_ready(200, LIMIT)?;
        }
        // Nobody sends: nothing is written any more.
        self.flow.check_whole()?;
        let how: &[&str] = if number % 2 == 1 { &["verify"] } else { &["verify", "--since-last"] };
        self.proves(how)
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
                    thread::sleep(Duration::from_millis(50));
                }
                Ok(())
            });
            self.pause(100, 1_000);
            let happened = what(self);
            stop.store(true, Ordering::Relaxed);
            happened.and(producer.join().map_err(|_| anyhow::anyhow!("the producer panicked"))?)
        })
    }

    /// A command ends with exit code 0: it has found nothing wrong.
    fn proves(&self, command: &[&str]) -> Result<()> {
        let said = Said::by(&self.flow, command)?;
        ensure!(said.code == 0, "{command:?} ends with {}:\n{}\n{}", said.code, said.stdout, said.stderr);
        Ok(())
    }

    /// A fault lasts for a while that the seed decides.
    fn pause(&mut self, least: u64, most: u64) {
        thread::sleep(Duration::from_millis(self.random.random_range(least..most)));
    }

    fn end(mut self) -> Result<()> {
        for consumer in std::mem::take(&mut self.consumers) {
            consumer.finish()?;
        }
        self.flow.check_whole()?;
        self.flow.check_against_model()?;
        self.proves(&["verify", "--deep"])?;
        // In a dry run everything is known; 3 would say that something is not.
        self.proves(&["replay"])?;
        self.proves(&["rebuild", "--drop"])
    }
}
