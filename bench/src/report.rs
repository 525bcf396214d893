//! The result: ratios first, absolute figures beside them; for people and for programs.

use crate::args::{Args, Size};
use crate::bench::Run;
use crate::plan::Plan;
use crate::sample::{Samples, Spread};
use crate::settings::Settings;
use crate::targets::{Better, TARGETS, Verdict, whole};
use anyhow::{Context, Result, bail};
use postonce::args::Output;
use postonce::table;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::process::ExitCode;

/// All that a run of the bench has found.
#[derive(Serialize)]
pub struct Report {
    size: Size,
    rounds: usize,
    workers: usize,
    settings: Settings,
    targets: Vec<Line>,
    measurements: Vec<Measured>,
}

/// A line of the table of targets.
#[derive(Serialize)]
struct Line {
    figure: &'static str,
    unit: &'static str,
    better: Better,
    at_least: f64,
    aim: f64,
    reached: Option<Spread>,
    verdict: Verdict,
    /// It could have been measured in this run.
    #[serde(skip)]
    due: bool,
    /// At least, aim, reached.
    #[serde(skip)]
    texts: [String; 3],
}

#[derive(Serialize)]
struct Measured {
    number: u8,
    name: &'static str,
    what: &'static str,
    contestants: Vec<Contested>,
}

#[derive(Serialize)]
struct Contested {
    name: &'static str,
    events_per_second: Option<Spread>,
    client_micros_per_event: Option<Spread>,
    postgres_micros_per_event: Option<Spread>,
    broker_micros_per_event: Option<Spread>,
    wal_bytes_per_event: Option<Spread>,
    disk_bytes_per_event: Option<Spread>,
    peak_memory_bytes: Option<Spread>,
    /// Where the time of the workers went.
    worker_micros_per_event: BTreeMap<&'static str, Spread>,
    more: BTreeMap<String, Spread>,
    runs: Vec<Run>,
}

impl Report {
    pub fn new(args: &Args, settings: Settings, plan: &Plan, samples: &Samples) -> Self {
        let numbers: BTreeSet<u8> = plan.measurements().map(|measurement| measurement.number).collect();
        let measured = |measurement: &'static crate::plan::Measurement| Measured {
            number: measurement.number,
            name: measurement.name,
            what: measurement.what,
            contestants: measurement.contestants.iter().map(|one| Contested::new(one.name, samples)).collect(),
        };
        let mut measurements: Vec<Measured> = plan.measurements().map(measured).collect();
        measurements.sort_by_key(|measurement| measurement.number);
        Self {
            size: args.size,
            rounds: args.rounds(),
            workers: args.workers(),
            settings,
            targets: lines(args.size, &numbers, samples),
            measurements,
        }
    }

    /// To stdout, and to a file where one was named.
    pub fn write(&self, args: &Args) -> Result<()> {
        let json = table::json(self)?;
        if let Some(path) = &args.json_file {
            fs::write(path, &json).with_context(|| format!("--json-file {}", path.display()))?;
        }
        table::print(&match args.output {
            Output::Table => self.text(),
            Output::Json => json,
        })?;
        Ok(())
    }

    /// A figure that was to be measured and is not there is an error, at every size.
    pub fn complete(&self) -> Result<ExitCode> {
        let missing: Vec<&str> =
            self.targets.iter().filter(|line| line.due && line.reached.is_none()).map(|line| line.figure).collect();
        if !missing.is_empty() {
            bail!("measured, and still without a figure: {}", missing.join("; "));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = writeln!(text, "{}", self.targets_text());
        let _ = writeln!(text, "{}", self.figures_text());
        let _ = writeln!(text, "{}", self.more_text());
        let _ = writeln!(text, "{}", self.steps_text());
        text + &self.settings_text()
    }

    fn targets_text(&self) -> String {
        let row = |line: &Line| {
            let [at_least, aim, reached] = line.texts.clone();
            [line.figure.to_owned(), at_least, aim, reached, line.verdict.words().to_owned()]
        };
        table::columns(
            &["figure", ">at least", ">aim", ">reached (from - to)", "verdict"],
            self.targets.iter().map(row),
        )
    }

    fn figures_text(&self) -> String {
        let headings = [
            "measurement",
            ">events/s",
            ">from",
            ">to",
            ">µs client",
            ">µs Postgres",
            ">µs broker",
            ">WAL B",
            ">disk B",
            ">MB",
        ];
        let rows = self.measurements.iter().flat_map(|measured| {
            measured.contestants.iter().map(|one| {
                let number = |spread: Option<Spread>| spread.map_or_else(|| "-".to_owned(), |s| whole(s.median));
                let micros =
                    |spread: Option<Spread>| spread.map_or_else(|| "-".to_owned(), |s| format!("{:.1}", s.median));
                [
                    format!("{} {}", measured.number, one.name),
                    number(one.events_per_second),
                    one.events_per_second.map_or_else(|| "-".to_owned(), |s| whole(s.min)),
                    one.events_per_second.map_or_else(|| "-".to_owned(), |s| whole(s.max)),
                    micros(one.client_micros_per_event),
                    micros(one.postgres_micros_per_event),
                    micros(one.broker_micros_per_event),
                    number(one.wal_bytes_per_event),
                    number(one.disk_bytes_per_event),
                    one.peak_memory_bytes.map_or_else(|| "-".to_owned(), |s| whole(s.median / 1e6)),
                ]
            })
        });
        table::columns(&headings, rows)
    }

    fn more_text(&self) -> String {
        let rows = self.measurements.iter().flat_map(|measured| {
            measured.contestants.iter().flat_map(|one| {
                one.more.iter().map(|(name, spread)| {
                    let number = |value: f64| if value >= 1_000.0 { whole(value) } else { format!("{value:.2}") };
                    [
                        format!("{} {}", measured.number, one.name),
                        name.clone(),
                        number(spread.median),
                        number(spread.min),
                        number(spread.max),
                    ]
                })
            })
        });
        table::columns(&["measurement", "figure", ">median", ">from", ">to"], rows)
    }

    /// One line for each contestant, the dearest step first.
    fn steps_text(&self) -> String {
        let mut text = String::new();
        for one in self.measurements.iter().flat_map(|measured| &measured.contestants) {
            let mut steps: Vec<_> = one.worker_micros_per_event.iter().collect();
            steps.sort_by(|(_, a), (_, b)| b.median.total_cmp(&a.median));
            let steps: Vec<String> =
                steps.iter().map(|(step, spread)| format!("{step} {:.1}", spread.median)).collect();
            if !steps.is_empty() {
                let _ = writeln!(text, "{}, µs of a worker for each event: {}", one.name, steps.join(", "));
            }
        }
        text
    }

    fn settings_text(&self) -> String {
        let mut text = self.settings.in_a_line();
        let settings: Vec<String> =
            self.settings.postgres_settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let _ = writeln!(text, "; data in {}\n{}", self.settings.directory, settings.join(" "));
        let _ = writeln!(
            text,
            "{} rounds, in turn; {} workers; medians, with the least and the greatest; µs are processor time for each event",
            self.rounds, self.workers
        );
        if !self.settings.optimised {
            text.push_str("built without optimisation: the times say nothing\n");
        }
        text
    }
}

impl Contested {
    fn new(name: &'static str, samples: &Samples) -> Self {
        let micros = |seconds: fn(&Run) -> Option<f64>| {
            samples.spread(name, |run| (run.events > 0).then_some(seconds(run)? * 1e6 / run.events as f64))
        };
        let bytes = |bytes: fn(&Run) -> Option<u64>| {
            samples.spread(name, |run| (run.events > 0).then_some(bytes(run)? as f64 / run.events as f64))
        };
        let runs = samples.runs(name);
        let steps: BTreeSet<&'static str> = runs.iter().flat_map(|run| run.steps.keys().copied()).collect();
        let step = |step: &'static str| Some((step, samples.spread(name, |run| run.steps.get(step).copied())?));
        let more: BTreeSet<&String> = runs.iter().flat_map(|run| run.more.keys()).collect();
        Self {
            name,
            events_per_second: samples.rate(name),
            client_micros_per_event: micros(|run| run.usage.client_seconds),
            postgres_micros_per_event: micros(|run| run.usage.postgres_seconds),
            broker_micros_per_event: micros(|run| run.usage.broker_seconds),
            wal_bytes_per_event: bytes(|run| run.usage.wal_bytes),
            disk_bytes_per_event: bytes(|run| run.usage.disk_bytes),
            peak_memory_bytes: samples.spread(name, |run| Some(run.usage.peak_memory_bytes? as f64)),
            worker_micros_per_event: steps.into_iter().filter_map(step).collect(),
            more: more.into_iter().filter_map(|key| Some((key.clone(), samples.more(name, key)?))).collect(),
            runs: runs.to_vec(),
        }
    }
}

fn lines(size: Size, measured: &BTreeSet<u8>, samples: &Samples) -> Vec<Line> {
    let line = |target: &'static crate::targets::Target| {
        let reached = (target.reached)(samples);
        let verdict = match target.verdict(reached) {
            Verdict::NotMeasured => Verdict::NotMeasured,
            _ if size == Size::Tiny => Verdict::NotJudged,
            verdict => verdict,
        };
        let unit = target.unit;
        let told = reached.map_or_else(
            || "-".to_owned(),
            |Spread { median, min, max }| {
                format!("{} ({} - {})", unit.text(median), unit.number(min), unit.number(max))
            },
        );
        Line {
            figure: target.figure,
            unit: unit.words(),
            better: target.better,
            at_least: target.at_least,
            aim: target.aim,
            reached,
            verdict,
            due: target.needs.iter().all(|number| measured.contains(number)),
            texts: [unit.text(target.at_least), unit.text(target.aim), told],
        }
    };
    TARGETS.iter().map(line).collect()
}
