//! Amounts and what they count.

use std::fmt;

/// An amount of minor units (cents, yen, fils), 0 to 2^53 − 1: the largest
/// integer that every JSON reader keeps exactly (RFC 8259, section 6; RFC 7493,
/// section 2.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Amount(i64);

impl Amount {
    /// 9,007,199,254,740,991 minor units.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// `None` outside 0 to [`Amount::MAX`].
    pub fn new(minor_units: i64) -> Option<Self> {
        (0..=Self::MAX.0).contains(&minor_units).then_some(Self(minor_units))
    }

    /// Reads a JSON number as it stands in the text: digits only. `1.0`, `1e3`
    /// and `-0` may be equal to integers but are refused: a producer that
    /// writes them computes money in floating point.
    pub fn parse(json_number: &str) -> Option<Self> {
        let digits = !json_number.is_empty() && json_number.len() <= 16;
        if !digits || !json_number.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        Self::new(json_number.parse().ok()?)
    }

    /// Minor units.
    pub fn minor_units(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What an amount counts: an ISO 4217 code, or another unit (points, an SKU) of
/// `[A-Z][A-Z0-9._-]{0,31}` that does not spell a currency. Held in place:
/// every posting carries one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asset {
    bytes: [u8; 32],
    length: u8,
}

impl Asset {
    /// An active or retired ISO 4217 code from `currencies.toml`.
    pub fn currency(code: &str) -> Option<Self> {
        crate::currency::decimals(code).and_then(|_| Self::held(code))
    }

    /// A unit that is no currency.
    pub fn unit(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        let shape = bytes.first().is_some_and(u8::is_ascii_uppercase)
            && bytes.iter().all(|b| matches!(b, b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-'));
        if !shape || crate::currency::decimals(name).is_some() {
            return None;
        }
        Self::held(name)
    }

    /// The code as text.
    pub fn as_str(&self) -> &str {
        // Only ASCII ever gets in, so the default is never taken.
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }

    /// Digits behind the decimal point: those of the currency, 0 for other units.
    pub fn decimals(&self) -> u8 {
        crate::currency::decimals(self.as_str()).unwrap_or(0)
    }

    fn held(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self { bytes, length: u8::try_from(text.len()).ok()? })
    }
}

impl fmt::Display for Asset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Asset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_an_integer_written_as_one() {
        assert_eq!(Amount::parse("0"), Amount::new(0));
        assert_eq!(Amount::parse("9007199254740991"), Some(Amount::MAX));
        for refused in ["9007199254740992", "1.0", "1e3", "-0", "-1", "", "99999999999999999999"] {
            assert_eq!(Amount::parse(refused), None, "{refused}");
        }
    }

    #[test]
    fn a_unit_never_spells_a_currency() {
        assert!(Asset::unit("POINTS").is_some());
        assert!(Asset::unit("SKU-7.A_B").is_some());
        for refused in ["EUR", "DEM", "", "points", "1UP", "A B", "ABCDEFGHIJKLMNOPQRSTUVWXYZ1234567"] {
            assert!(Asset::unit(refused).is_none(), "{refused}");
        }
        assert!(Asset::currency("EUR").is_some());
        assert!(Asset::currency("DEM").is_some(), "retired codes stay");
        for refused in ["eur", "XXX", "XAU", "XDR", "EURO", ""] {
            assert!(Asset::currency(refused).is_none(), "{refused}");
        }
    }
}
