//! How accounts, assets and texts stand in a format that cannot hold them as they are.
//!
//! **Accounts, hledger and ledger**: as they are. Both hold every path of the ledger.
//!
//! **Accounts, beancount** (components of `[A-Z0-9][A-Za-z0-9-]*`): the root gets its
//! capital letter, then segment by segment:
//!
//! | in the path | in the name |
//! |---|---|
//! | `a`–`z` as the first byte | the capital letter |
//! | `0`–`9` as the first byte | itself |
//! | anything else as the first byte | `X-x`, then as below |
//! | `A`–`Z` `a`–`z` `0`–`9` | itself |
//! | `-` | `--` |
//! | `.` | `-d` |
//! | `_` | `-u` |
//! | `%XX` | `-XX` |
//!
//! So `liabilities:merchant:m_42` is `Liabilities:Merchant:M-u42`. Behind a `-` comes
//! one of `-`, `d`, `u`, two upper-case hex digits, or (only in an `X-x` at the
//! beginning) `x`: no two paths have one name, and [`beancount_path`] finds the path.
//!
//! **Assets, hledger and ledger**: a currency as it is, any other asset in quotes.
//!
//! **Assets, beancount** (`[A-Z][A-Z0-9'._-]{0,22}[A-Z0-9]`): as they are where that
//! fits. Else `'0` is put behind (one letter alone; an end in `.`, `_` or `-`; the words
//! TRUE, FALSE and NULL), and what is then longer than 24 bytes becomes `X'` and the
//! first 22 upper-case hex digits of SHA-256 of the asset. No asset of ours has a `'`.
//! The asset itself stands in the file's `commodity` directive.
//!
//! **Texts** (resource, place): bytes outside `!` to `~`, and `"` `%` `,` `;` `[` `\` `]`
//! as upper-case `%XX`: each of them means something in one of the formats.

use postonce_schema::AccountPath;
use sha2::{Digest, Sha256};
use std::fmt::Write;

const LONGEST_BEANCOUNT_ASSET: usize = 24;

/// The name of an account in beancount.
pub fn beancount_account(path: &AccountPath) -> String {
    let mut name = String::with_capacity(path.as_str().len() + 8);
    for (index, segment) in path.as_str().split(':').enumerate() {
        if index > 0 {
            name.push(':');
        }
        let mut bytes = segment.bytes().peekable();
        match bytes.next_if(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
            Some(first) => name.push(char::from(first.to_ascii_uppercase())),
            None => name.push_str("X-x"),
        }
        for byte in bytes {
            match byte {
                b'-' => name.push_str("--"),
                b'.' => name.push_str("-d"),
                b'_' => name.push_str("-u"),
                // Its two digits follow as they are.
                b'%' => name.push('-'),
                plain => name.push(char::from(plain)),
            }
        }
    }
    name
}

/// The path whose name in beancount this is; `None` if it is none's.
pub fn beancount_path(name: &str) -> Option<AccountPath> {
    let segments: Option<Vec<String>> = name.split(':').map(segment_of).collect();
    let path = AccountPath::parse(&segments?.join(":")).ok()?;
    // A name that only resembles one, such as `Assets:X-xa` for `Assets:A`, is none.
    (beancount_account(&path) == name).then_some(path)
}

fn segment_of(component: &str) -> Option<String> {
    let mut segment = String::with_capacity(component.len());
    let mut rest = match component.strip_prefix("X-x") {
        Some(behind) => behind,
        None => {
            let mut chars = component.chars();
            segment.push(chars.next()?.to_ascii_lowercase());
            chars.as_str()
        }
    };
    while let Some((plain, escape)) = rest.split_once('-') {
        segment.push_str(plain);
        let mut chars = escape.chars();
        match chars.next()? {
            '-' => segment.push('-'),
            'd' => segment.push('.'),
            'u' => segment.push('_'),
            digit => segment.extend(['%', digit, chars.next()?]),
        }
        rest = chars.as_str();
    }
    segment.push_str(rest);
    Some(segment)
}

/// The name of an asset in beancount.
pub fn beancount_asset(asset: &str) -> String {
    let fits = asset.len() >= 2
        && asset.ends_with(|last: char| last.is_ascii_uppercase() || last.is_ascii_digit())
        && !["TRUE", "FALSE", "NULL"].contains(&asset);
    let name = if fits { asset.to_owned() } else { format!("{asset}'0") };
    if name.len() <= LONGEST_BEANCOUNT_ASSET {
        return name;
    }
    let mut short = "X'".to_owned();
    for byte in Sha256::digest(asset).iter().take(11) {
        // Writing to a String cannot fail.
        let _ = write!(short, "{byte:02X}");
    }
    short
}

/// The asset whose name in beancount this is, of those that the file declares.
pub fn beancount_asset_of<'a>(name: &str, declared: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    declared.into_iter().find(|asset| beancount_asset(asset) == name)
}

/// An asset in hledger and ledger. Quotes, because digits and most signs end a bare
/// name there, and `E` or `H` alone may mean something else.
pub fn journal_asset(asset: &str) -> String {
    match postonce_schema::currency::decimals(asset) {
        Some(_) => asset.to_owned(),
        None => format!("\"{asset}\""),
    }
}

/// A text that came with an event.
pub fn text(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for byte in text.bytes() {
        let stands = byte.is_ascii_graphic() && !matches!(byte, b'"' | b'%' | b',' | b';' | b'[' | b'\\' | b']');
        if stands {
            safe.push(char::from(byte));
        } else {
            let _ = write!(safe, "%{byte:02X}");
        }
    }
    safe
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
