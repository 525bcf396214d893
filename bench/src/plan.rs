//! Which measurements there are, and which of them take turns.

use crate::bench::{Bench, Run};
use crate::sample::Samples;
use crate::{ceiling, client, growth, hot, kafka, latency, memory, one_by_one, replay, retailer, sink, workers};
use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use postonce::commands::interrupt;
use std::time::Duration;

/// One of the measurements, by the number that it has everywhere.
#[derive(Debug)]
pub struct Measurement {
    pub number: u8,
    pub name: &'static str,
    pub what: &'static str,
    pub contestants: &'static [Contestant],
}

/// One thing that is run and timed. Its second argument is the round, from 0.
#[derive(Debug)]
pub struct Contestant {
    pub name: &'static str,
    pub run: fn(&Bench, usize) -> Result<Run>,
}

/// Measurements whose runs take turns, so that a slow minute of the machine is everybody's.
pub struct Turn {
    measurements: &'static [&'static Measurement],
    /// Too long to be repeated.
    once: bool,
}

/// All of them, in the order in which they are run.
const TURNS: &[Turn] = &[
    Turn {
        measurements: &[
            &ceiling::MEASUREMENT,
            &memory::MEASUREMENT,
            &kafka::MEASUREMENT,
            &one_by_one::MEASUREMENT,
            &sink::MEASUREMENT,
            &replay::MEASUREMENT,
        ],
        once: false,
    },
    Turn { measurements: &[&hot::MEASUREMENT], once: false },
    Turn { measurements: &[&workers::MEASUREMENT], once: false },
    Turn { measurements: &[&client::MEASUREMENT], once: true },
    Turn { measurements: &[&latency::MEASUREMENT], once: true },
    Turn { measurements: &[&retailer::MEASUREMENT], once: true },
    Turn { measurements: &[&growth::MEASUREMENT], once: true },
];

/// What is to be run.
pub struct Plan(Vec<(Vec<&'static Measurement>, bool)>);

/// Those that were asked for by number or name; all where nothing was.
pub fn chosen(only: &[String]) -> Result<Plan> {
    let all = || TURNS.iter().flat_map(|turn| turn.measurements.iter());
    let is = |measurement: &Measurement, wanted: &str| {
        wanted == measurement.name || wanted.parse() == Ok(measurement.number)
    };
    for wanted in only {
        let names: Vec<String> = all().map(|one| format!("{} {}", one.number, one.name)).collect();
        ensure!(
            all().any(|measurement| is(measurement, wanted)),
            "--only: there is no measurement \"{wanted}\"; there are {}",
            names.join(", ")
        );
    }
    let asked = |measurement: &&'static Measurement| only.is_empty() || only.iter().any(|name| is(measurement, name));
    let turn = |turn: &Turn| (turn.measurements.iter().copied().filter(asked).collect(), turn.once);
    Ok(Plan(TURNS.iter().map(turn).collect()))
}

impl Plan {
    pub fn measurements(&self) -> impl Iterator<Item = &'static Measurement> + '_ {
        self.0.iter().flat_map(|(measurements, _)| measurements.iter().copied())
    }
}

/// Runs all of it.
pub fn carry_out(plan: &Plan, bench: &Bench) -> Result<Samples> {
    let mut samples = Samples::default();
    // indicatif draws nothing where stderr is no terminal.
    let progress = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}, {elapsed}") {
        progress.set_style(style);
    }
    progress.enable_steady_tick(Duration::from_millis(200));
    for (measurements, once) in &plan.0 {
        let rounds = if *once { 1 } else { bench.rounds };
        for round in 0..rounds {
            for contestant in measurements.iter().flat_map(|measurement| measurement.contestants) {
                ensure!(interrupt::signal().is_none(), "stopped by a signal");
                progress.set_message(format!("{}, round {} of {rounds}", contestant.name, round + 1));
                let run = (contestant.run)(bench, round).with_context(|| contestant.name.to_owned())?;
                if let Some(rate) = run.rate() {
                    progress.println(format!("{}: {rate:.0} events/s", contestant.name));
                }
                samples.add(contestant.name, run);
            }
        }
    }
    progress.finish_and_clear();
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn names(only: &[&str]) -> Vec<&'static str> {
        let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
        chosen(&only).unwrap().measurements().map(|measurement| measurement.name).collect()
    }

    #[test]
    fn measurements_are_chosen_by_number_or_name() {
        assert_eq!(names(&["3", "ceiling"]), ["ceiling", "kafka"]);
        let error = chosen(&["nothing".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("\"nothing\"") && error.contains("3 kafka"), "{error}");
    }

    #[test]
    fn nothing_is_there_twice() {
        let (mut numbers, mut contestants) = (HashSet::new(), HashSet::new());
        for measurement in chosen(&[]).unwrap().measurements() {
            assert!(numbers.insert(measurement.number), "{}", measurement.name);
            for contestant in measurement.contestants {
                assert!(contestants.insert(contestant.name), "{}", contestant.name);
            }
        }
    }
}
