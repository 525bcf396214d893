//! What every measurement has at hand, and what it gives back.

use crate::args::{Args, PARTITIONS, Size};
use crate::ceiling::Rows;
use crate::ledger::Ledger;
use crate::load::{Payments, send};
use crate::parts::Parts;
use crate::usage::Usage;
use anyhow::{Context, Result};
use postonce_schema::{Decoder, POSITIONS_TOML, Rules};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The parts, and how large the runs are.
pub struct Bench {
    pub size: Size,
    /// Workers of the consumer, connections of its baselines.
    pub workers: usize,
    pub rounds: usize,
    pub parts: Parts,
    /// The rules that ship with Postonce.
    pub decoder: Decoder,
    /// What the ceiling writes: read once, from a ledger that the consumer has filled.
    pub rows: OnceLock<Rows>,
    topics: Mutex<HashMap<(Payments, usize), Arc<Topic>>>,
}

/// A topic that was filled before.
pub struct Topic {
    pub name: String,
    pub events: u64,
}

/// One run of one contestant.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    pub events: u64,
    pub seconds: f64,
    pub usage: Usage,
    /// Where the time of the workers went: µs for each event, by step.
    pub steps: BTreeMap<&'static str, f64>,
    /// What only this measurement has, by name with its unit.
    pub more: BTreeMap<String, f64>,
    /// Slice by slice: events in the ledger at its end, and events in a second within it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<(u64, f64)>,
}

impl Run {
    /// Events in a second; none where events are not what was counted.
    pub fn rate(&self) -> Option<f64> {
        (self.events > 0 && self.seconds > 0.0).then(|| self.events as f64 / self.seconds)
    }

    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.more.insert(name.to_owned(), value);
        self
    }
}

impl Bench {
    pub fn new(args: &Args, parts: Parts) -> Result<Self> {
        let rules = Rules::parse(POSITIONS_TOML).context("the rules that ship with Postonce")?;
        Ok(Self {
            size: args.size,
            workers: args.workers(),
            rounds: args.rounds(),
            parts,
            decoder: Decoder::new(rules),
            rows: OnceLock::new(),
            topics: Mutex::default(),
        })
    }

    /// Events of a run that reads from memory.
    pub fn memory_events(&self) -> u64 {
        self.size.pick(12_000, 400_000, 2_000_000)
    }

    /// Events of a run that reads from Kafka.
    pub fn kafka_events(&self) -> u64 {
        self.size.pick(12_000, 1_000_000, 4_000_000)
    }

    /// A database of its own with the product's schema, and nothing left to write.
    pub fn fresh_ledger(&self, label: &str) -> Result<Ledger<'_>> {
        Ledger::fresh(&self.parts, label)
    }

    /// A topic with these payments; it is filled when it is first asked for.
    pub fn topic(&self, payments: Payments, partitions: usize) -> Result<Arc<Topic>> {
        if let Some(topic) = self.topics.lock().unwrap_or_else(PoisonError::into_inner).get(&(payments, partitions)) {
            return Ok(Arc::clone(topic));
        }
        let name = self.parts.kafka.topic("bench", i32::try_from(partitions)?)?;
        send(&self.parts.kafka.bootstrap(), &name, payments.events, |number, event| payments.write(number, event))?;
        let topic = Arc::new(Topic { name, events: payments.events });
        self.topics.lock().unwrap_or_else(PoisonError::into_inner).insert((payments, partitions), Arc::clone(&topic));
        Ok(topic)
    }

    /// The topic of measurement 3, which others read too.
    pub fn usual_topic(&self) -> Result<Arc<Topic>> {
        self.topic(Payments::usual(self.kafka_events()), PARTITIONS)
    }

    /// The program `postonce` that was built with this one.
    pub fn postonce(&self) -> Result<PathBuf> {
        let own = std::env::current_exe()?;
        let path = own.parent().context("this program has no directory")?.join("postonce");
        anyhow::ensure!(
            path.is_file(),
            "there is no {}: run `cargo build --release` first, or `make bench`",
            path.display()
        );
        Ok(path)
    }
}
