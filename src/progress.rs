//! How far a long reading is: a bar on stderr, on a terminal only.

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::fmt::Write;

pub struct Progress(ProgressBar);

impl Progress {
    pub fn begin(doing: &'static str) -> Self {
        // indicatif draws nothing where stderr is no terminal.
        let progress = Self(ProgressBar::no_length());
        progress.then(doing);
        progress
    }

    /// Another part of the work, of which nobody knows how long it takes.
    pub fn then(&self, doing: &'static str) {
        if self.0.message() != doing {
            self.0.set_style(ProgressStyle::default_spinner());
            self.0.set_message(doing);
        }
        self.0.tick();
    }

    pub fn at(&self, doing: &'static str, done: u64, total: u64) {
        if self.0.message() != doing || self.0.length() != Some(total) {
            let template = "{msg} {wide_bar} {human_pos} of {human_len} offsets, {rate}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                let rate = |state: &ProgressState, out: &mut dyn Write| {
                    // Writing to a line of the terminal that is held in memory does not fail.
                    let _ = write!(out, "{:.0}/s", state.per_sec());
                };
                self.0.set_style(style.with_key("rate", rate));
            }
            self.0.set_message(doing);
            self.0.set_length(total);
            // The rate and what is left are of this part alone.
            self.0.reset();
        }
        self.0.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
