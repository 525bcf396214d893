//! `postonce top`: what the consumers are doing, on a terminal.

mod figures;
mod refused;
mod scrape;
mod screen;

use crate::args::{DatabaseArgs, Output, OutputArgs};
use crate::commands::interrupt;
use crate::table;
use anyhow::Context;
use figures::{Figures, Instance};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::{DefaultTerminal, Terminal, backend::TestBackend};
use refused::Watch;
use screen::{Rates, Screen};
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use ureq::Agent;

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// As wide as any terminal.
const RATES: usize = 1_000;
/// Where there is no terminal.
const PLAIN: (u16, u16) = (120, 40);

const HELP: &str = "\
Reads /metrics of each consumer (consume --listen) twice a second, and the quarantine
from the database where --database-url is given. Rates and times are those of the
last ten seconds. Where stdout is no terminal, or with --once or -o json, it prints
what it saw within two seconds and ends.

Exit codes: 0, 1 an error; with --once 1 if no consumer is heard.

Examples:
  postonce top
  postonce top --metrics 10.0.0.5:9464,10.0.0.6:9464
  postonce top --once -o json | jq .lag_messages";

/// Watch consumers: throughput by outcome, lag, latency, what was refused last
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Where the consumers serve /metrics, `HOST:PORT` or a URL; repeatable
    #[arg(
        long,
        env = "POSTONCE_METRICS",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        default_value = "127.0.0.1:9464"
    )]
    metrics: Vec<String>,

    /// Postgres, for the messages that were refused last
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,

    /// The Postgres schema that holds the ledger
    #[arg(long, env = "POSTONCE_SCHEMA", default_value = "postonce")]
    schema: String,

    /// Print one screen and end
    #[arg(long, env = "POSTONCE_TOP_ONCE")]
    once: bool,

    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    interrupt::watch().context("no signals can be watched")?;
    let Args { metrics, database_url, schema, once, output } = args;
    let database = database_url.map(|database_url| DatabaseArgs { database_url, schema });
    let mut top = Top::new(metrics, database)?;
    if once || output.output == Output::Json || !stdout().is_terminal() {
        return top.once(output.output);
    }
    top.watch()?;
    Ok(ExitCode::SUCCESS)
}

/// What is watched.
pub struct Top {
    agent: Agent,
    urls: Vec<String>,
    instances: Vec<Instance>,
    refusals: Watch,
    rates: Rates,
}

impl Top {
    pub fn new(metrics: Vec<String>, database: Option<DatabaseArgs>) -> anyhow::Result<Self> {
        Ok(Self {
            agent: scrape::agent(),
            urls: metrics.iter().map(|metrics| url(metrics)).collect(),
            instances: metrics.into_iter().map(Instance::new).collect(),
            refusals: Watch::begin(database)?,
            rates: Rates::new(),
        })
    }

    /// Until q, Ctrl-C or a signal.
    pub fn watch(&mut self) -> anyhow::Result<()> {
        // It restores the terminal when a panic unwinds, too.
        let mut terminal = ratatui::try_init().context("no terminal to draw on")?;
        let ended = self.draw(&mut terminal);
        ratatui::restore();
        ended
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
        while interrupt::signal().is_none() {
            let begun = Instant::now();
            let figures = self.look();
            let refusals = self.refusals.last();
            let screen = Screen { figures: &figures, rates: &self.rates, refusals: &refusals };
            terminal.draw(|frame| screen::draw(frame, &screen))?;
            while event::poll(LOOK_EVERY.saturating_sub(begun.elapsed()))? {
                if ends(&event::read()?) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Two looks make a rate; the third has heard of the database.
    fn once(&mut self, output: Output) -> anyhow::Result<ExitCode> {
        for _ in 0..3 {
            self.look();
            std::thread::sleep(LOOK_EVERY);
        }
        let figures = self.look();
        table::print(&match output {
            Output::Json => table::json(&figures)?,
            Output::Table => {
                let refusals = self.refusals.last();
                plain(&Screen { figures: &figures, rates: &self.rates, refusals: &refusals })?
            }
        })?;
        let heard = figures.instances.iter().any(|one| one.workers_ready > 0.0 || one.problem.is_none());
        Ok(if heard { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn look(&mut self) -> Figures {
        for (instance, url) in self.instances.iter_mut().zip(&self.urls) {
            match scrape::ask(&self.agent, url) {
                Ok(scrape) => instance.heard(scrape),
                Err(error) => instance.not_heard(format!("{error:#}")),
            }
        }
        let figures = Figures::of(&self.instances);
        if self.rates.len() == RATES {
            self.rates.pop_front();
        }
        self.rates.push_back(rounded(figures.messages_per_second));
        figures
    }
}

/// Rust converts a float by text or by a cast that hides what does not fit.
fn rounded(rate: f64) -> u64 {
    format!("{rate:.0}").parse().unwrap_or(0)
}

/// The screen as text, without colours.
fn plain(screen: &Screen<'_>) -> anyhow::Result<String> {
    let (width, height) = PLAIN;
    let mut terminal = Terminal::new(TestBackend::new(width, height))?;
    terminal.draw(|frame| screen::draw(frame, screen))?;
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).filter_map(|x| buffer.cell((x, y))).map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    Ok(text)
}

fn ends(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

fn url(metrics: &str) -> String {
    if metrics.contains("://") { metrics.to_owned() } else { format!("http://{metrics}/metrics") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refused::Refusals;

    #[test]
    fn an_address_is_enough() {
        assert_eq!(url("localhost:9464"), "http://localhost:9464/metrics");
        assert_eq!(url("https://a/b"), "https://a/b");
    }

    #[test]
    fn a_screen_shows_who_is_away_and_steers_no_terminal() {
        let mut away = Instance::new("10.0.0.5:9464".to_owned());
        away.not_heard("refused\u{1b}[2J".to_owned());
        let figures = Figures::of(&[away]);
        let refusals = Refusals::Unknown("no database".to_owned());
        let text = plain(&Screen { figures: &figures, rates: &Rates::new(), refusals: &refusals }).unwrap();
        assert!(text.contains("● 10.0.0.5:9464  refused\\u{1b}[2J"), "{text}");
        assert!(text.contains("rejected") && text.contains("no database"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }
}
