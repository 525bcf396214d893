//! How far behind its original a duplicate came: pure, no I/O.

use postonce_schema::Timestamp;

const MINUTE_MICROS: u64 = 60_000_000;
const HOUR_MICROS: u64 = 60 * MINUTE_MICROS;
const DAY_MICROS: u64 = 24 * HOUR_MICROS;

/// When a content that is known came for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// In the batch at hand.
    InThisBatch,
    /// Before it, by the Kafka timestamp of that message, if it had one.
    Before(Option<Timestamp>),
}

/// How far a duplicate is from its original: what a window for duplicates would have to span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    SameBatch,
    /// Up to a minute.
    Minute,
    Hour,
    Day,
    /// More than a day, or one of the two messages has no timestamp.
    Older,
}

impl Distance {
    pub const ALL: [Self; 5] = [Self::SameBatch, Self::Minute, Self::Hour, Self::Day, Self::Older];

    /// Between the original and a copy with this Kafka timestamp. By those and not by this
    /// machine's clock: a consumer that was away for a day would make a day of each second.
    pub fn of(original: Came, copy: Option<Timestamp>) -> Self {
        let original = match original {
            Came::InThisBatch => return Self::SameBatch,
            Came::Before(time) => time,
        };
        let Some((original, copy)) = original.zip(copy) else { return Self::Older };
        let apart = original.micros().abs_diff(copy.micros());
        let within = [(MINUTE_MICROS, Self::Minute), (HOUR_MICROS, Self::Hour), (DAY_MICROS, Self::Day)];
        within.into_iter().find(|(most, _)| apart <= *most).map_or(Self::Older, |(_, distance)| distance)
    }

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::SameBatch => "same_batch",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Older => "older",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_is_that_of_the_timestamps() {
        let at = |seconds: i64| Timestamp::from_micros(1_700_000_000_000_000 + seconds * 1_000_000);
        let of = |seconds| Distance::of(Came::Before(at(0)), at(seconds));
        assert_eq!(Distance::of(Came::InThisBatch, None), Distance::SameBatch);
        assert_eq!([of(0), of(60), of(-60)], [Distance::Minute; 3], "a copy may have an earlier timestamp");
        assert_eq!([of(61), of(3_600)], [Distance::Hour; 2]);
        assert_eq!([of(3_601), of(86_400)], [Distance::Day; 2]);
        assert_eq!(of(86_401), Distance::Older);
        assert_eq!(Distance::of(Came::Before(None), at(0)), Distance::Older);
        assert_eq!(Distance::of(Came::Before(at(0)), None), Distance::Older);
    }
}
