//! What was to be reached, and what was: pure.

use crate::sample::{Samples, Spread};
use crate::sink::BY_HASH;
use serde::Serialize;

/// One line of the table.
pub struct Target {
    pub figure: &'static str,
    pub unit: Unit,
    pub at_least: f64,
    pub aim: f64,
    pub better: Better,
    /// The measurements that it comes from, by number.
    pub needs: &'static [u8],
    /// From the runs.
    pub reached: fn(&Samples) -> Option<Spread>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
}

/// What a figure counts, and how many decimals are worth printing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Ratio,
    EventsPerSecond,
    Milliseconds,
    Microseconds,
    Megabytes,
    Bytes,
}

/// What is said of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The aim is reached.
    Aim,
    /// At least what was asked for.
    Pass,
    Short,
    NotMeasured,
    /// At this size a figure only shows that it can be measured.
    NotJudged,
}

/// Both ways to write one event after the other.
const ONE_BY_ONE: [&str; 2] = ["one_by_one, 1 connection", "one_by_one, 8 connections"];

/// All of them, in the order in which they are told.
pub const TARGETS: &[Target] = &[
    ratio("2 ÷ 1: from memory ÷ ceiling", (0.70, 0.90), &[1, 2], |s| s.ratio("memory", "ceiling")),
    ratio("3 ÷ 1: from Kafka ÷ ceiling", (0.60, 0.80), &[1, 3], |s| s.ratio("kafka", "ceiling")),
    Target {
        figure: "3: from Kafka",
        unit: Unit::EventsPerSecond,
        at_least: 90_000.0,
        aim: 130_000.0,
        better: Better::Higher,
        needs: &[3],
        reached: |s| s.rate("kafka"),
    },
    ratio("3 ÷ 4: from Kafka ÷ best of one by one", (12.0, 25.0), &[3, 4], |s| {
        s.ratio("kafka", s.best(&ONE_BY_ONE)?)
    }),
    ratio("3 ÷ 11: from Kafka ÷ one-row sink", (1.0, 1.5), &[3, 11], |s| s.ratio("kafka", BY_HASH)),
    ratio("5 ÷ 3: replay, all duplicates ÷ from Kafka", (1.6, 3.0), &[3, 5], |s| {
        s.ratio("replay, all duplicates", "kafka")
    }),
    ratio("6: growth, last million ÷ second", (0.85, 0.95), &[6], |s| {
        let growth = |figure| s.more("growth, in order", figure);
        // A ledger of less than three million has no such million.
        growth("last million ÷ second").or_else(|| growth("last part ÷ second part"))
    }),
    ratio("6: late events ÷ in order", (0.5, 0.8), &[6], |s| s.ratio("growth, late events", "growth, in order")),
    ratio("7: 100,000 merchants ÷ 5,000", (0.6, 0.8), &[7], |s| s.ratio("100,000 merchants", "5,000 merchants")),
    lower("8: p99 at 1,000 events/s", Unit::Milliseconds, (50.0, 15.0), &[8], |s| s.more("latency", "p99 ms")),
    lower("10: client alone, for each event", Unit::Microseconds, (2.5, 1.2), &[10], |s| {
        s.more("client", "µs for each event")
    }),
    lower("3: consumer resident", Unit::Megabytes, (300.0, 100.0), &[3], |s| {
        s.spread("kafka", |run| Some(run.usage.peak_memory_bytes? as f64 / 1e6))
    }),
    lower("3: WAL for each event", Unit::Bytes, (1_000.0, 700.0), &[3], |s| {
        s.spread("kafka", |run| Some(run.usage.wal_bytes? as f64 / run.events as f64))
    }),
    lower("3: disk for each event", Unit::Bytes, (900.0, 650.0), &[3], |s| {
        s.spread("kafka", |run| Some(run.usage.disk_bytes? as f64 / run.events as f64))
    }),
    lower("6: statement, first page", Unit::Milliseconds, (50.0, 5.0), &[6], |s| {
        s.more("growth, in order", "statement, first page, ms")
    }),
];

const fn ratio(
    figure: &'static str,
    (at_least, aim): (f64, f64),
    needs: &'static [u8],
    reached: fn(&Samples) -> Option<Spread>,
) -> Target {
    Target { figure, unit: Unit::Ratio, at_least, aim, better: Better::Higher, needs, reached }
}

const fn lower(
    figure: &'static str,
    unit: Unit,
    (at_least, aim): (f64, f64),
    needs: &'static [u8],
    reached: fn(&Samples) -> Option<Spread>,
) -> Target {
    Target { figure, unit, at_least, aim, better: Better::Lower, needs, reached }
}

impl Target {
    /// By the median.
    pub fn verdict(&self, reached: Option<Spread>) -> Verdict {
        let Some(Spread { median, .. }) = reached else {
            return Verdict::NotMeasured;
        };
        let meets = |bound: f64| match self.better {
            Better::Higher => median >= bound,
            Better::Lower => median <= bound,
        };
        match (meets(self.aim), meets(self.at_least)) {
            (true, _) => Verdict::Aim,
            (false, true) => Verdict::Pass,
            (false, false) => Verdict::Short,
        }
    }
}

impl Verdict {
    pub fn words(self) -> &'static str {
        match self {
            Self::Aim => "pass, aim reached",
            Self::Pass => "pass",
            Self::Short => "SHORT",
            Self::NotMeasured => "not measured",
            Self::NotJudged => "not judged",
        }
    }
}

impl Unit {
    pub fn words(self) -> &'static str {
        match self {
            Self::Ratio => "ratio",
            Self::EventsPerSecond => "events/s",
            Self::Milliseconds => "ms",
            Self::Microseconds => "µs",
            Self::Megabytes => "MB",
            Self::Bytes => "B",
        }
    }

    /// `0.83`, `118,204 events/s`, `4.1 ms`.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Ratio => self.number(value),
            _ => format!("{} {}", self.number(value), self.words()),
        }
    }

    /// The same without its unit.
    pub fn number(self, value: f64) -> String {
        match self {
            Self::Ratio => format!("{value:.2}"),
            Self::Milliseconds | Self::Microseconds => format!("{value:.1}"),
            _ => whole(value),
        }
    }
}

/// `118,204`
pub fn whole(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Run;

    fn of(median: f64) -> Option<Spread> {
        Some(Spread { median, min: 0.0, max: 1e9 })
    }

    #[test]
    fn a_bound_that_is_just_met_is_met() {
        for target in TARGETS {
            let beyond = if target.better == Better::Higher { 1.0 - 1e-9 } else { 1.0 + 1e-9 };
            assert_eq!(target.verdict(of(target.aim)), Verdict::Aim, "{}", target.figure);
            assert_eq!(target.verdict(of(target.aim * beyond)), Verdict::Pass, "{}", target.figure);
            assert_eq!(target.verdict(of(target.at_least)), Verdict::Pass, "{}", target.figure);
            assert_eq!(target.verdict(of(target.at_least * beyond)), Verdict::Short, "{}", target.figure);
            assert_eq!(target.verdict(None), Verdict::NotMeasured);
        }
    }

    #[test]
    fn figures_come_from_the_runs_that_they_name() {
        let mut samples = Samples::default();
        for (name, events) in [("kafka", 100_000), (ONE_BY_ONE[0], 1_000), (ONE_BY_ONE[1], 5_000), ("ceiling", 125_000)]
        {
            let mut run = Run { events, seconds: 1.0, ..Run::default() };
            run.usage.wal_bytes = Some(events * 800);
            samples.add(name, run);
        }
        let reached = |figure: &str| {
            let target = TARGETS.iter().find(|target| target.figure.starts_with(figure)).unwrap();
            (target.reached)(&samples).map(|spread| spread.median)
        };
        assert_eq!(reached("3 ÷ 1:"), Some(0.8));
        assert_eq!(reached("3 ÷ 4:"), Some(20.0), "the better of the two");
        assert_eq!(reached("3: from Kafka"), Some(100_000.0));
        assert_eq!(reached("3: WAL"), Some(800.0));
        assert_eq!(reached("3 ÷ 11"), None);
    }

    #[test]
    fn figures_read_well() {
        assert_eq!(Unit::Ratio.text(0.825), "0.82");
        assert_eq!(Unit::EventsPerSecond.text(118_203.6), "118,204 events/s");
        assert_eq!(Unit::Milliseconds.text(4.06), "4.1 ms");
        let numbers = [(0.0, "0"), (999.0, "999"), (1e3, "1,000"), (1_234_567.0, "1,234,567"), (-1_000.0, "-1,000")];
        for (value, expected) in numbers {
            assert_eq!(whole(value), expected);
        }
        assert_eq!(whole(-100_000.0), "-100,000");
    }
}
