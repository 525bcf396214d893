//! `make bench`: Postonce against named baselines, on real Postgres and real Apache Kafka,
//! in one run on whatever machine it runs.
//!
//! ```text
//! args       how large, which measurements
//! parts      Postgres and Kafka, their data on a disk
//! settings   what they run with; refuses what would make the figures worthless
//! plan       which measurements there are, and which of them run in turn
//! load       the events: the same every time
//! ledger     a fresh database for each run, and whether its books are right at the end
//! usage      what a run costs beside time
//! sample     median, least and greatest of the runs; ratios within one round
//! targets    what was to be reached, and what was
//! report     all of it as a table and as JSON
//! plot       the growth runs as a picture
//! ```
//! Each measurement is a file of its own: `ceiling`, `memory`, `kafka`, `one_by_one`, `sink`, …
#![allow(
    clippy::as_conversions,
    reason = "counts become f64 here, and nothing but a figure in a report follows from them"
)]

mod args;
mod bench;
mod ceiling;
mod client;
mod growth;
mod hot;
mod kafka;
mod latency;
mod ledger;
mod load;
mod memory;
mod one_by_one;
mod outcomes;
mod own_topic;
mod parts;
mod plan;
mod plot;
mod replay;
mod report;
mod retailer;
mod rows;
mod sample;
mod settings;
mod sink;
mod targets;
mod usage;
mod workers;

use anyhow::Context;
use args::Args;
use bench::Bench;
use clap::Parser;
use postonce::commands::interrupt;
use report::Report;
use std::fs;
use std::process::ExitCode;

fn main() -> ExitCode {
    run(&Args::parse()).unwrap_or_else(|error| {
        eprintln!("postonce-bench: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    interrupt::watch().context("no signals can be watched")?;
    let plan = plan::chosen(&args.only)?;
    let parts = parts::start(args)?;
    let settings = settings::read(&parts)?;
    let bench = Bench::new(args, parts)?;
    let samples = plan::carry_out(&plan, &bench)?;
    let machine = settings.in_a_line();
    let report = Report::new(args, settings, &plan, &samples);
    report.write(args)?;
    if let (Some(path), Some(svg)) = (&args.plot_file, plot::of_growth(&samples, &machine)) {
        fs::write(path, svg).with_context(|| format!("--plot-file {}", path.display()))?;
    }
    report.complete()
}
