//! Repeats are counted, not told: the first of a kind stand in the log at once, and of the
//! rest one line each ten seconds says how many there were. A burst of poison, a broker that
//! is away or a database that comes and goes would drown the line that matters.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};
use tracing_core::callsite::Identifier;
use tracing_subscriber::layer::{Context, Filter};

/// So many of a kind are told at once.
const FIRST: u32 = 5;
/// How often the others are summed up. Who was silent for so long begins anew.
const EVERY: Duration = Duration::from_secs(10);
/// The target of what is said here.
const TARGET: &str = "postonce::log::repeats";

/// What has been said lately, and how often.
#[derive(Clone, Default)]
pub struct Repeats(Arc<Shared>);

#[derive(Default)]
struct Shared {
    said: Mutex<HashMap<Kind, Said>>,
    watched: AtomicBool,
}

/// One line of the program; of what passes through from librdkafka, what it is about too.
#[derive(PartialEq, Eq, Hash)]
struct Kind {
    callsite: Identifier,
    facility: String,
}

struct Said {
    since: Instant,
    told: u32,
    left_out: u64,
    /// The message of the last one.
    words: String,
}

/// How often something was not told.
#[derive(Debug, PartialEq, Eq)]
struct LeftOut {
    words: String,
    times: u64,
}

impl Repeats {
    /// Whether this one is told.
    fn tell(&self, kind: Kind, words: String, now: Instant) -> bool {
        let mut said = self.said();
        let said = said.entry(kind).or_insert(Said { since: now, told: 0, left_out: 0, words: String::new() });
        if said.told < FIRST {
            said.told += 1;
            return true;
        }
        said.left_out += 1;
        said.words = words;
        false
    }

    /// What was left out of each kind whose time is over.
    fn sum_up(&self, every: Duration, now: Instant) -> Vec<LeftOut> {
        let mut found = Vec::new();
        self.said().retain(|_, said| {
            if now.duration_since(said.since) < every {
                return true;
            }
            let times = std::mem::take(&mut said.left_out);
            if times == 0 {
                return false;
            }
            said.since = now;
            found.push(LeftOut { words: std::mem::take(&mut said.words), times });
            true
        });
        found
    }

    fn said(&self) -> MutexGuard<'_, HashMap<Kind, Said>> {
        self.0.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sums up from now on. Only who has left something out needs a thread for it.
    fn watch(&self) {
        if self.0.watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let repeats = self.clone();
        let watch = move || {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                print(&repeats.sum_up(EVERY, Instant::now()));
            }
        };
        let watching = std::thread::Builder::new().name("log-repeats".to_owned()).spawn(watch);
        if let Err(error) = watching {
            eprintln!("postonce: nobody counts the lines that are left out of the log: {error}");
        }
    }

    /// At the end of the process nothing stays untold.
    pub fn finish(&self) {
        print(&self.sum_up(Duration::ZERO, Instant::now()));
    }
}

fn print(left_out: &[LeftOut]) {
    for LeftOut { words, times } in left_out {
        tracing::warn!(target: TARGET, times, last = words, "more of the same");
    }
}

impl<S> Filter<S> for Repeats {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if !can_repeat(metadata.target(), *metadata.level()) {
            return true;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let kind = Kind { callsite: metadata.callsite(), facility: fields.facility };
        let told = self.tell(kind, fields.message, Instant::now());
        if !told {
            self.watch();
        }
        told
    }
}

/// Each claim and each step of a command is told, however many there are; and who searches
/// by debug wants all.
fn can_repeat(target: &str, level: Level) -> bool {
    let warns = level <= Level::WARN;
    match target {
        "librdkafka" => level <= Level::INFO,
        "otlp" => warns,
        ours => ours.starts_with("postonce_consumer") && warns,
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    facility: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "facility" {
            value.clone_into(&mut self.facility);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::Layer as _;
    use tracing_subscriber::layer::SubscriberExt as _;

    /// Where the lines of the test go.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn count(&self, words: &str) -> usize {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap().matches(words).count()
        }
    }

    #[test]
    fn the_first_are_told_and_the_rest_is_counted() {
        let (repeats, lines) = (Repeats::default(), Lines::default());
        let out = lines.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(move || out.clone())
            .with_filter(repeats.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for offset in 0..100 {
                tracing::warn!(target: "postonce_consumer::life", offset, "refused");
                tracing::info!(target: "postonce_consumer::life", offset, "claimed");
                tracing::warn!(target: "postonce::commands::send", offset, "skipped");
                let facility = if offset % 2 == 0 { "FAIL" } else { "REQTMOUT" };
                tracing::error!(target: "librdkafka", facility, "broker down");
            }
            assert_eq!([lines.count("refused"), lines.count("claimed"), lines.count("skipped")], [5, 100, 100]);
            assert_eq!(lines.count("broker down"), 10, "five of each facility");
            repeats.finish();
        });
        assert_eq!(lines.count("more of the same"), 3);
        assert_eq!([lines.count("times=95"), lines.count("times=45")], [1, 2]);
    }

    #[test]
    fn who_was_silent_begins_anew() {
        let metadata = tracing::info_span!("any").metadata().map(Metadata::callsite);
        let Some(callsite) = metadata else { return };
        let kind = || Kind { callsite: callsite.clone(), facility: String::new() };
        let (repeats, start) = (Repeats::default(), Instant::now());
        let told = |at: u64| repeats.tell(kind(), at.to_string(), start + Duration::from_secs(at));
        let summed = |at: u64| repeats.sum_up(EVERY, start + Duration::from_secs(at));
        assert_eq!((0..8).filter(|_| told(0)).count(), 5);
        assert_eq!(summed(9), []);
        assert_eq!(summed(10), [LeftOut { words: "0".to_owned(), times: 3 }]);
        assert!(!told(11), "the burst goes on");
        assert_eq!(summed(20), [LeftOut { words: "11".to_owned(), times: 1 }]);
        assert_eq!(summed(30), []);
        assert!(told(31), "after ten silent seconds it is news again");
    }
}
