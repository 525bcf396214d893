//! A topic of one run, which is gone at its end: disks are not endless.

use crate::args::PARTITIONS;
use crate::bench::{Bench, Topic};
use crate::ledger::Ledger;
use crate::load::{EventText, send};
use anyhow::Result;
use postonce_tests::{delete_before, unique};

/// Files small enough to be deleted while the topic is still read.
const SEGMENT_BYTES: &str = "67108864";

/// Dropping it deletes it.
pub struct OwnTopic<'b> {
    bench: &'b Bench,
    pub topic: Topic,
}

impl<'b> OwnTopic<'b> {
    pub fn empty(bench: &'b Bench, label: &str) -> Result<Self> {
        let name = unique(label);
        let config = [("segment.bytes", SEGMENT_BYTES), ("file.delete.delay.ms", "1000")];
        bench.parts.kafka.create_topic(&name, i32::try_from(PARTITIONS)?, &config)?;
        Ok(Self { bench, topic: Topic { name, events: 0 } })
    }

    pub fn filled(
        bench: &'b Bench,
        label: &str,
        messages: u64,
        write: impl FnMut(u64, &mut EventText),
    ) -> Result<Self> {
        let mut own = Self::empty(bench, label)?;
        own.fill(messages, write)?;
        Ok(own)
    }

    /// Appends so many messages: what is to be read next.
    pub fn fill(&mut self, messages: u64, write: impl FnMut(u64, &mut EventText)) -> Result<()> {
        send(&self.bench.parts.kafka.bootstrap(), &self.topic.name, messages, write)?;
        self.topic.events = messages;
        Ok(())
    }

    /// Lets the broker delete what this ledger has committed.
    pub fn delete_read(&self, ledger: &Ledger<'_>) -> Result<()> {
        let read: Vec<(i32, i64)> = ledger.db.rows("SELECT partition, next_offset FROM postonce.streams")?;
        for (partition, next_offset) in read {
            delete_before(&self.bench.parts.kafka, &self.topic.name, partition, next_offset)?;
        }
        Ok(())
    }
}

impl Drop for OwnTopic<'_> {
    fn drop(&mut self) {
        // A bench that has failed has more to tell than this.
        let _ = self.bench.parts.kafka.delete_topic(&self.topic.name);
    }
}
