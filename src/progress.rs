//! How far a long reading is: a bar on stderr, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};

pub struct Progress(ProgressBar);

impl Progress {
    pub fn begin(doing: &'static str) -> Self {
        // indicatif draws nothing where stderr is no terminal.
        let bar = ProgressBar::no_length().with_message(doing);
        let template = "{msg} {wide_bar} {human_pos} of {human_len} offsets, {per_sec:.0}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Another part of the work, of which nobody knows how long it takes.
    pub fn then(&self, doing: &'static str) {
        if self.0.message() != doing {
            self.0.set_style(ProgressStyle::default_spinner());
            self.0.set_message(doing);
        }
        self.0.tick();
    }

    pub fn at(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
