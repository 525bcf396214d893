//! What a person sees while the demo runs: a line for each step on stdout, and on a
//! terminal a bar on stderr.

use crate::table;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// A line of the result.
pub fn say(text: &str) -> anyhow::Result<()> {
    Ok(table::print(&format!("{text}\n"))?)
}

/// One step of the demo: told in a line when it is done, and until then shown on
/// stderr, if that is a terminal.
pub struct Step {
    began: Instant,
    bar: ProgressBar,
}

impl Step {
    pub fn begin(doing: &'static str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(doing);
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { began: Instant::now(), bar }
    }

    /// From here on it is known how much there is to do.
    pub fn of(self, length: u64) -> Self {
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {human_pos} of {human_len}") {
            self.bar.set_style(style);
        }
        self.bar.set_length(length);
        self
    }

    pub fn at(&self, position: u64) {
        self.bar.set_position(position);
    }

    /// Says what has happened and how long it took.
    pub fn done(self, what: &str, details: &str) -> anyhow::Result<()> {
        self.bar.finish_and_clear();
        let line = format!("{:>6.1} s  {what}", self.began.elapsed().as_secs_f64());
        say(&if details.is_empty() { line } else { format!("{line}\n          {details}") })
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
