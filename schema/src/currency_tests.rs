use super::*;
use iso_currency::{Currency as Iso, IntoEnumIterator};

#[test]
fn the_file_reads() {
    let all = all().expect("currencies.toml");
    assert!(all.len() > 200);
    assert!(all.keys().all(|code| index(code).is_some()));
    assert!(all.values().all(|currency| currency.decimals <= 4 && !currency.name.is_empty()));
    let retired =
        |c: &Currency| c.retired.as_ref().is_none_or(|m| m.len() == 4 || (m.len() == 7 && m.as_bytes()[4] == b'-'));
    assert!(all.values().all(retired));
    for never in ["XXX", "XTS", "XAU", "XAG", "XPT", "XPD", "XDR", "XUA", "XSU", "XBA"] {
        assert!(!all.contains_key(never), "{never} counts no money");
    }
}

/// A second opinion from a list that somebody else keeps.
#[test]
fn agrees_with_iso_currency() {
    let all = all().expect("currencies.toml");
    let mut compared = 0;
    for iso in Iso::iter() {
        let (code, Some(exponent)) = (iso.code(), iso.exponent()) else { continue };
        if code.starts_with('X') && !all.contains_key(code) {
            continue; // metals, funds and test codes
        }
        let ours = all.get(code).unwrap_or_else(|| panic!("{code} ({}) is missing", iso.name()));
        assert_eq!(u16::from(ours.decimals), exponent, "decimals of {code}");
        compared += 1;
    }
    assert!(compared > 150, "{compared}");
}
