//! What has gone wrong with one batch so far, and what that asks for: pure, no I/O.

use crate::failure::{Failure, Race};
use std::time::Duration;

/// Races lost in a row before the batch is given up.
const MOST_RACES: u32 = 20;
/// The same row violated so often is no race.
const SAME_VIOLATION: u32 = 3;
/// Events in a row that only the database refuses: beyond that the database is wrong.
const MOST_INTERNAL: u32 = 5;

/// The troubles of one batch.
#[derive(Default)]
pub struct Trouble {
    races: u32,
    /// In a row.
    internal: u32,
    violation: Option<(String, u32)>,
}

/// What to do with the batch that was rolled back.
pub enum Next {
    /// Run it again after a pause.
    Again(Duration),
    /// Run half of it: one of its events makes the database refuse.
    Halve,
    /// It holds one message, and that is refused, for this reason.
    SetAside(String),
}

impl Trouble {
    /// A part of the batch is through. `internal`: with an event set aside.
    pub fn committed(&mut self, internal: bool) {
        self.races = 0;
        if !internal {
            self.internal = 0;
        }
    }

    /// After a failure of so many messages. What no retry can help is handed back.
    pub fn next(&mut self, failure: Failure, messages: usize) -> Result<Next, Failure> {
        match failure {
            Failure::Race(race) => self.race(race).map(Next::Again),
            Failure::BadData(_) if messages > 1 => Ok(Next::Halve),
            Failure::BadData(error) => {
                self.internal += 1;
                if messages == 0 || self.internal > MOST_INTERNAL {
                    return Err(Failure::Damage(error.to_string()));
                }
                Ok(Next::SetAside(error.to_string()))
            }
            failure => Err(failure),
        }
    }

    /// How long to wait before the batch is run again.
    fn race(&mut self, race: Race) -> Result<Duration, Failure> {
        self.races += 1;
        if let Race::Unique { constraint, detail } = &race {
            let row = format!("{constraint}: {detail}");
            let times = self.violation.take().filter(|(seen, _)| *seen == row).map_or(0, |(_, times)| times) + 1;
            if times >= SAME_VIOLATION {
                return Err(Failure::Damage(format!("the same row is violated {times} times in a row, {row}")));
            }
            self.violation = Some((row, times));
        }
        if self.races > MOST_RACES {
            return Err(Failure::Race(race));
        }
        // Jitter: two workers that met must not meet again.
        Ok(Duration::from_millis(rand::random_range(1..=10 * u64::from(self.races))))
    }
}
