//! 12: a case from a retailer. Eight million point credits, each unique by key, member and
//! campaign, under rules of its own (`bench/points.toml`: kind `points`, an asset that is no
//! currency). 11,247 of them are sent a second time, as a client does that has not heard an
//! answer. Nothing may be credited twice, and the balance of each member and of each campaign
//! must be what the input adds up to.

use crate::bench::{Bench, Run};
use crate::kafka;
use crate::ledger::Ledger;
use crate::load::{EventText, at, mix, time_of};
use crate::outcomes;
use crate::own_topic::OwnTopic;
use crate::plan::{Contestant, Measurement};
use anyhow::{Context, Result, ensure};
use postonce_schema::{Decoder, Rules};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

pub const MEASUREMENT: Measurement = Measurement {
    number: 12,
    name: "retailer",
    what: "a retailer's point credits, some of them retried: rules of their own, reconciled with the input",
    contestants: &[Contestant { name: "retailer", run: |bench, _| run(bench) }],
};

const RULES: &str = include_str!("../points.toml");
const CREDITS: u64 = 8_000_000;
/// Of so many credits.
const RETRIED: u64 = 11_247;
/// Credits for each member, on average.
const FOR_EACH_MEMBER: u64 = 4;
const CAMPAIGNS: u64 = 12;
/// A client that has not heard an answer tries again after so many other credits.
const RETRIED_AFTER: usize = 1_000;

fn run(bench: &Bench) -> Result<Run> {
    let credits = bench.size.pick(20_000, 400_000, CREDITS);
    let input = Input::of(credits);
    let mut sent = input.messages();
    let messages = input.credits + input.retried;
    let own = OwnTopic::filled(bench, "points", messages, |_, event| {
        if let Some(number) = sent.next() {
            input.credit(number).write(event);
        }
    })?;
    let rules = tempfile::NamedTempFile::new()?;
    std::fs::write(rules.path(), RULES)?;
    let path = rules.path().to_str().context("a directory whose name is no text")?;
    let ledger = bench.fresh_ledger("retailer")?;
    let (mut run, _) =
        kafka::consume_with(bench, &ledger, &own.topic, bench.workers, &["--positions", path], &mut || Ok(()))?;
    let disk = ledger.disk_bytes("postonce")?;
    run.usage.disk_bytes = Some(disk);
    ledger.check(input.credits, input.credits)?;
    outcomes::check(&ledger, input.credits, input.retried)?;
    let reconciled = reconcile(&ledger, &input)?;
    let begun = Instant::now();
    ledger.verify(&Decoder::new(Rules::parse(RULES).context("the rules of the retailer")?))?;
    let verified = begun.elapsed().as_secs_f64();
    let postings: i64 = ledger.db.one("SELECT count(*) FROM postonce.postings")?;
    let took = run.seconds;
    Ok(run
        .with("credits", input.credits as f64)
        .with("credits retried", input.retried as f64)
        .with("duplicates posted", postings as f64 - input.credits as f64)
        .with("reconciled with the input, %", reconciled)
        .with("seconds to the last commit", took)
        .with("on disk, MB", disk as f64 / 1e6)
        .with("verify, s", verified))
}

/// What is sent.
struct Input {
    credits: u64,
    retried: u64,
}

/// One credit.
struct Credit {
    number: u64,
    member: u64,
    campaign: u64,
    points: u64,
}

impl Input {
    fn of(credits: u64) -> Self {
        Self { credits, retried: credits * RETRIED / CREDITS }
    }

    fn members(&self) -> u64 {
        self.credits / FOR_EACH_MEMBER
    }

    fn credit(&self, number: u64) -> Credit {
        let chance = mix(number ^ 0x9017);
        Credit {
            number,
            member: chance % self.members(),
            campaign: (chance >> 32) % CAMPAIGNS,
            points: 1 + (chance >> 40) % 5_000,
        }
    }

    /// The credit of each message; the retried ones spread evenly.
    fn messages(&self) -> impl Iterator<Item = u64> {
        let retried = |number: u64| (number + 1) * self.retried / self.credits > number * self.retried / self.credits;
        let mut unanswered: VecDeque<(u64, u64)> = VecDeque::new();
        let (mut next, last) = (0, self.credits);
        std::iter::from_fn(move || {
            if unanswered.front().is_some_and(|(_, due)| *due <= next || next == last) {
                return unanswered.pop_front().map(|(number, _)| number);
            }
            let number = (next < last).then_some(next)?;
            if retried(number) {
                unanswered.push_back((number, number + RETRIED_AFTER as u64));
            }
            next += 1;
            Some(number)
        })
    }
}

impl Credit {
    fn write(&self, event: &mut EventText) {
        let Self { number, member, campaign, points } = self;
        event.clear();
        event.key(format_args!("m_{member:07}"));
        event.value(format_args!(
            "{{\"type\":\"points.credited\",\"resource\":\"order_{number:08}/m_{member:07}/c_{campaign:02}\",\
             \"updatedAt\":\"{}\",\"source\":\"shop-1\",\"data\":{{\"member\":\"m_{member:07}\",\
             \"campaign\":\"c_{campaign:02}\",\"unit\":\"POINTS\",\"points\":{points}}}}}",
            at(time_of(*number)),
        ));
    }
}

/// Adds the input up anew and compares each balance with it: how many of a hundred agree. All
/// of them must.
fn reconcile(ledger: &Ledger<'_>, input: &Input) -> Result<f64> {
    let mut expected: HashMap<String, i64> = HashMap::new();
    for number in 0..input.credits {
        let Credit { member, campaign, points, .. } = input.credit(number);
        let points = i64::try_from(points)?;
        *expected.entry(format!("liabilities:points:m_{member:07}")).or_default() -= points;
        *expected.entry(format!("expenses:campaign:c_{campaign:02}")).or_default() += points;
    }
    let found: Vec<(String, i64)> =
        ledger.db.rows("SELECT account, balance::bigint FROM postonce.account_balances WHERE asset = 'POINTS'")?;
    let agree = found.iter().filter(|(account, balance)| expected.get(account) == Some(balance)).count();
    ensure!(
        agree == expected.len() && agree == found.len(),
        "{agree} balances agree with the input; it has {} accounts, the ledger {}",
        expected.len(),
        found.len()
    );
    Ok(agree as f64 * 100.0 / expected.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::InMemory;
    use postonce_schema::Message;
    use std::collections::HashMap;

    #[test]
    fn each_credit_is_sent_once_and_the_retried_ones_twice() {
        for (credits, retried) in [(8_000, 11), (400_000, 562), (CREDITS / 16, RETRIED / 16)] {
            let mut times: HashMap<u64, u32> = HashMap::new();
            Input::of(credits).messages().for_each(|number| *times.entry(number).or_default() += 1);
            assert_eq!(times.len() as u64, credits);
            assert_eq!(times.values().filter(|times| **times == 2).count() as u64, retried);
            assert!(times.values().all(|times| *times <= 2));
        }
        assert_eq!(Input::of(CREDITS).retried, RETRIED);
    }

    #[test]
    fn a_credit_is_one_posting_of_points() {
        let (decoder, input) = (Decoder::new(Rules::parse(RULES).unwrap()), Input::of(1_000));
        let all = InMemory::of(1_000, |number, event| input.credit(number).write(event));
        for place in 0..all.len() {
            let (_, value) = all.get(place).unwrap();
            let event = decoder.decode(Message { value: Some(value), headers: &[], timestamp: None }).unwrap();
            assert_eq!(event.resource.split('/').count(), 3, "unique by key, member, campaign");
        }
    }
}
