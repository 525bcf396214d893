//! The currencies of `currencies.toml`: ISO 4217, active and retired.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// What the file says of one code.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Currency {
    /// Digits behind the decimal point: 2 for EUR, 0 for JPY, 3 for KWD.
    pub decimals: u8,
    /// The English name.
    pub name: String,
    /// When the code was withdrawn, `YYYY-MM`. Retired codes stay so that old
    /// topics can be rebuilt.
    pub retired: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    currency: BTreeMap<String, Currency>,
}

const CURRENCIES_TOML: &str = include_str!("../currencies.toml");
const CODES: usize = 26 * 26 * 26;

/// Every code of the file, in alphabetical order.
pub fn all() -> Result<BTreeMap<String, Currency>, toml::de::Error> {
    toml::from_str::<File>(CURRENCIES_TOML).map(|file| file.currency)
}

/// The decimals of an upper-case code, `None` if the file does not have it.
pub fn decimals(code: &str) -> Option<u8> {
    // One byte for every possible code: a look-up is an index, not a hash.
    static TABLE: OnceLock<Box<[Option<u8>]>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut table = vec![None; CODES];
        // The file is part of the program; a test reads it, so it parses.
        for (code, currency) in all().unwrap_or_default() {
            if let Some(index) = index(&code) {
                table[index] = Some(currency.decimals);
            }
        }
        table.into_boxed_slice()
    });
    table[index(code)?]
}

fn index(code: &str) -> Option<usize> {
    if code.len() != 3 {
        return None;
    }
    code.bytes().try_fold(0, |n, b| match b {
        b'A'..=b'Z' => Some(n * 26 + usize::from(b - b'A')),
        _ => None,
    })
}

#[cfg(test)]
#[path = "currency_tests.rs"]
mod tests;
