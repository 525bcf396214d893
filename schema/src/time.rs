//! Points in time: microseconds, UTC, years 1970 to 9999.
//!
//! An event's id is a hash over its time as text, so the text is ours to the
//! last digit: RFC 3339 (<https://www.rfc-editor.org/rfc/rfc3339>), section
//! 5.6, with a fraction of any length, cut (never rounded) to six digits.

use std::fmt;

/// Microseconds since 1970-01-01T00:00:00Z, not counting leap seconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;
/// 9999-12-31T23:59:59.999999Z
const LAST: i64 = 253_402_300_799_999_999;

impl Timestamp {
    /// 1970-01-01T00:00:00Z
    pub const EPOCH: Self = Self(0);

    /// From microseconds since 1970; `None` outside the years 1970 to 9999.
    pub fn from_micros(micros: i64) -> Option<Self> {
        (0..=LAST).contains(&micros).then_some(Self(micros))
    }

    /// Microseconds since 1970-01-01T00:00:00Z.
    pub fn micros(self) -> i64 {
        self.0
    }

    /// Reads RFC 3339 with `T`, seconds and an offset. The error says what is
    /// wrong with the text, for the producer.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let b = text.as_bytes();
        if b.len() < 20 {
            return Err("it is shorter than YYYY-MM-DDTHH:MM:SSZ");
        }
        let shape = b[4] == b'-' && b[7] == b'-' && b[13] == b':' && b[16] == b':';
        if !shape || !matches!(b[10], b'T' | b't') {
            return Err("it does not look like YYYY-MM-DDTHH:MM:SS with a T between");
        }
        let [year, month, day] = [digits(&b[0..4])?, digits(&b[5..7])?, digits(&b[8..10])?];
        let [hour, minute, second] = [digits(&b[11..13])?, digits(&b[14..16])?, digits(&b[17..19])?];
        if !(1..=12).contains(&month) || day < 1 || day > days_in_month(year, month) {
            return Err("there is no such day");
        }
        if hour > 23 || minute > 59 || second > 59 {
            return Err("there is no such time of day (leap seconds have no place in a ledger)");
        }
        let (micros, rest) = fraction(&b[19..])?;
        let offset = offset_seconds(rest)?;
        let seconds =
            days_since_epoch(year, month, day) * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second - offset;
        Self::from_micros(seconds * MICROS_PER_SECOND + micros).ok_or("it is outside the years 1970 to 9999 in UTC")
    }

    /// Appends `2026-01-02T03:04:05.123456Z`: always UTC, always six decimals.
    /// Every id and fingerprint has it, so it is written digit by digit.
    pub fn write(self, out: &mut String) {
        let seconds = self.0.div_euclid(MICROS_PER_SECOND);
        let (year, month, day) = date_of(seconds.div_euclid(SECONDS_PER_DAY));
        let in_day = seconds.rem_euclid(SECONDS_PER_DAY);
        let (hour, minute, second) = (in_day / 3600, in_day / 60 % 60, in_day % 60);
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        put(&mut text[0..4], year);
        put(&mut text[5..7], month);
        put(&mut text[8..10], day);
        put(&mut text[11..13], hour);
        put(&mut text[14..16], minute);
        put(&mut text[17..19], second);
        put(&mut text[20..26], self.0.rem_euclid(MICROS_PER_SECOND));
        // All ASCII, so the default is never taken.
        out.push_str(std::str::from_utf8(&text).unwrap_or_default());
    }
}

/// As [`Timestamp::write`] has it.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(27);
        self.write(&mut text);
        f.write_str(&text)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn digits(bytes: &[u8]) -> Result<i64, &'static str> {
    bytes.iter().try_fold(0, |n, &b| match b {
        b'0'..=b'9' => Ok(n * 10 + i64::from(b - b'0')),
        _ => Err("there is something else where a digit belongs"),
    })
}

/// Writes a number that is not negative over all of `digits`.
fn put(digits: &mut [u8], mut number: i64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
    }
}

/// `.123456789Z` → (123456, `Z`)
fn fraction(bytes: &[u8]) -> Result<(i64, &[u8]), &'static str> {
    let Some(rest) = bytes.strip_prefix(b".") else {
        return Ok((0, bytes));
    };
    let length = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    if length == 0 {
        return Err("the decimal point has no digits behind it");
    }
    let micros = (0..6).fold(0, |n, i| {
        let digit = if i < length { rest[i] - b'0' } else { 0 };
        n * 10 + i64::from(digit)
    });
    Ok((micros, &rest[length..]))
}

/// `Z`, `+02:00` or `-11:30`, as seconds east of UTC.
fn offset_seconds(bytes: &[u8]) -> Result<i64, &'static str> {
    let sign = match bytes {
        [b'Z' | b'z'] => return Ok(0),
        [b'+', ..] => 1,
        [b'-', ..] => -1,
        _ => return Err("it must end with Z or an offset such as +02:00"),
    };
    if bytes.len() != 6 || bytes[3] != b':' {
        return Err("the offset must look like +02:00");
    }
    let (hours, minutes) = (digits(&bytes[1..3])?, digits(&bytes[4..6])?);
    if hours > 23 || minutes > 59 {
        return Err("there is no such offset");
    }
    Ok(sign * (hours * 3600 + minutes * 60))
}

fn days_in_month(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in
// March so that the leap day comes last; an era is 400 years, 146,097 days.
// https://howardhinnant.github.io/date_algorithms.html
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = (shifted + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
#[path = "time_tests.rs"]
mod tests;
