//! Accounts: a path in five roots, together with one asset.

use crate::{AccountId, Asset};
use std::collections::HashMap;
use std::sync::Arc;

/// The five roots of double-entry bookkeeping.
pub const ROOTS: [&str; 5] = ["assets", "liabilities", "equity", "income", "expenses"];

/// The longest path of a journal's line, in bytes.
pub const MAX_JOURNAL_PATH: usize = 512;

/// An account: its id is a hash of path and asset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub id: AccountId,
    pub path: AccountPath,
    pub asset: Asset,
}

impl Account {
    pub fn new(path: AccountPath, asset: Asset) -> Self {
        Self { id: AccountId::new(&path.0, asset.as_str()), path, asset }
    }
}

/// The accounts that have been named so far: most are named again and again, and to
/// hash and keep each once is much cheaper. It grows with every account, so it lives
/// no longer than a batch.
#[derive(Debug, Default)]
pub struct Accounts {
    by_name: HashMap<String, Arc<Account>>,
    /// Where names are put together: path, LF, asset. A path holds no LF.
    name: String,
}

impl Accounts {
    /// The account of the path that `write` appends, which must be one.
    pub(crate) fn get(&mut self, asset: Asset, write: impl FnOnce(&mut String)) -> Arc<Account> {
        self.name.clear();
        write(&mut self.name);
        let length = self.name.len();
        self.name.push('\n');
        self.name.push_str(asset.as_str());
        if let Some(account) = self.by_name.get(&self.name) {
            return Arc::clone(account);
        }
        let account = Arc::new(Account::new(AccountPath(self.name[..length].to_owned()), asset));
        self.by_name.insert(self.name.clone(), Arc::clone(&account));
        account
    }
}

/// A path such as `assets:psp:stripe`: a root, then segments of
/// `[A-Za-z0-9._-]` or upper-case `%XX`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountPath(String);

impl AccountPath {
    /// Reads a path as it stands in the ledger; never encodes it again.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let mut segments = text.split(':');
        if !segments.next().is_some_and(|root| ROOTS.contains(&root)) {
            return Err("its root is not one of assets, liabilities, equity, income, expenses");
        }
        let mut any = false;
        for segment in segments {
            any = true;
            check_segment(segment)?;
        }
        if any { Ok(Self(text.to_owned())) } else { Err("it is a root without a segment") }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether `segment` may stand between two colons.
pub(crate) fn check_segment(segment: &str) -> Result<(), &'static str> {
    let mut bytes = segment.bytes();
    if segment.is_empty() {
        return Err("a segment is empty");
    }
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let hex = |b: Option<u8>| b.is_some_and(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F'));
                if !hex(bytes.next()) || !hex(bytes.next()) {
                    return Err("a % is not followed by two upper-case hex digits");
                }
            }
            b if is_plain(b) => {}
            _ => return Err("a segment holds something else than A-Z a-z 0-9 . _ - or %XX"),
        }
    }
    Ok(())
}

/// Appends `text` with every byte outside `A-Z a-z 0-9 . _ -` as upper-case `%XX`.
pub(crate) fn percent_encode(text: &str, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    // Nearly every name is plain.
    if text.bytes().all(is_plain) {
        return out.push_str(text);
    }
    for byte in text.bytes() {
        if is_plain(byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for good in ["assets:bank", "liabilities:merchant:m%20X", "equity:a.b_c-d:9"] {
            assert!(AccountPath::parse(good).is_ok(), "{good}");
        }
        for bad in
            ["assets", "asset:x", "assets:", "assets::x", "assets:a b", "assets:%2f", "assets:%2", ":x", "Assets:x"]
        {
            assert!(AccountPath::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn encoding_leaves_no_way_to_forge_a_segment() {
        let mut out = String::new();
        percent_encode("a:b%/é", &mut out);
        assert_eq!(out, "a%3Ab%25%2F%C3%A9");
        assert!(check_segment(&out).is_ok());
    }
}
