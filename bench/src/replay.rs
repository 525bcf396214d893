//! 5: replay. A topic in which nothing is new, and topics in which every twentieth or every
//! second message has come before.
//!
//! All duplicates: the same messages stand twice in one topic. The first half fills the
//! ledger, the second half comes when that is done and is timed alone, from the start of the
//! process as in 3. Beside it `postonce replay`, the dry run that reads all of it again and
//! compares, without the hash of the books.
//!
//! 5 % and 50 %: each duplicate is some earlier event of the topic, however old.

use crate::args::PARTITIONS;
use crate::bench::{Bench, Run};
use crate::kafka;
use crate::load::{Payments, mix};
use crate::outcomes;
use crate::own_topic::OwnTopic;
use crate::plan::{Contestant, Measurement};
use anyhow::{Context, Result, ensure};
use postonce_tests::PostonceProcess;
use serde::Deserialize;
use std::time::Duration;

pub const MEASUREMENT: Measurement = Measurement {
    number: 5,
    name: "replay",
    what: "replay: nothing but duplicates, and 5 % and 50 % of them mixed in",
    contestants: &[
        Contestant { name: "replay, all duplicates", run: all },
        Contestant { name: "replay, 50 % duplicates", run: |bench, round| mixed(bench, round, 50) },
        Contestant { name: "replay, 5 % duplicates", run: |bench, round| mixed(bench, round, 5) },
    ],
};

/// Longer than any dry run.
const LIMIT: Duration = Duration::from_secs(1_800);

fn all(bench: &Bench, round: usize) -> Result<Run> {
    let payments = Payments::usual(bench.kafka_events());
    let mut own = OwnTopic::filled(bench, "twice", payments.events, |number, event| payments.write(number, event))?;
    let ledger = bench.fresh_ledger("replay")?;
    kafka::consume(bench, &ledger, &own.topic, bench.workers)?;
    own.fill(payments.events, |number, event| payments.write(number, event))?;
    let run = kafka::consume(bench, &ledger, &own.topic, bench.workers)?;
    let run = run.with("postonce replay, messages/s", dry_run(bench, &ledger.url, &own.topic.name)?);
    ledger.check(payments.events, payments.events * 2)?;
    outcomes::check(&ledger, payments.events, payments.events)?;
    if round == 0 {
        ledger.verify(&bench.decoder)?;
    }
    Ok(run)
}

/// What is used of the report.
#[derive(Deserialize)]
struct Report {
    equal: bool,
    events_per_second: f64,
}

/// Messages that `postonce replay` compares in a second; an error if it finds a difference.
fn dry_run(bench: &Bench, database_url: &str, topic: &str) -> Result<f64> {
    let workers = bench.workers.min(PARTITIONS).to_string();
    let args = ["replay", "--no-digest", "--output", "json", "--workers", &workers, "--topic", topic];
    let brokers = bench.parts.kafka.bootstrap();
    let env = [("KAFKA_BROKERS", brokers.as_str()), ("DATABASE_URL", database_url)];
    let mut process = PostonceProcess::start_by(&bench.postonce()?, &args, &env)?;
    let status = process.wait(LIMIT)?;
    ensure!(status.success(), "postonce replay: {status}\n{}{}", process.stdout(), process.stderr());
    let report: Report = serde_json::from_str(&process.stdout()).context("the report of postonce replay")?;
    ensure!(report.equal, "postonce replay has found a difference");
    Ok(report.events_per_second)
}

fn mixed(bench: &Bench, round: usize, percent: u64) -> Result<Run> {
    let messages = bench.kafka_events();
    let payments = Payments::usual(messages);
    let mut mix = Mix { percent, new: 0 };
    let own = OwnTopic::filled(bench, "mixed", messages, |place, event| payments.write(mix.next(place), event))?;
    let ledger = bench.fresh_ledger("mixed")?;
    let mut run = kafka::consume(bench, &ledger, &own.topic, bench.workers)?;
    run.usage.disk_bytes = Some(ledger.disk_bytes("postonce")?);
    ledger.check(mix.new, mix.new * 2)?;
    outcomes::check(&ledger, mix.new, messages - mix.new)?;
    if round == 0 {
        ledger.verify(&bench.decoder)?;
    }
    Ok(run)
}

/// Which event stands at which place of a topic with duplicates.
struct Mix {
    percent: u64,
    /// How many events have been there so far.
    new: u64,
}

impl Mix {
    /// The number of the event at this place; places are asked for in their order.
    fn next(&mut self, place: u64) -> u64 {
        let chance = mix(place ^ 0xd0b1e);
        if self.new > 0 && chance % 100 < self.percent {
            return (chance >> 8) % self.new;
        }
        self.new += 1;
        self.new - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_of_a_hundred_have_come_before() {
        for percent in [5, 50] {
            let mut mix = Mix { percent, new: 0 };
            let numbers: Vec<u64> = (0..100_000).map(|place| mix.next(place)).collect();
            let again = 100_000 - mix.new;
            assert!(again.abs_diff(percent * 1_000) < 500, "{again} of 100,000 at {percent} %");
            let mut seen = 0;
            for number in numbers {
                assert!(number <= seen, "an event comes first before it comes again");
                seen = seen.max(number + 1);
            }
            assert_eq!(seen, mix.new, "each event comes");
        }
    }
}
