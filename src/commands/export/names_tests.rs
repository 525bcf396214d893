use super::*;
use postonce_schema::account::ROOTS;
use proptest::prelude::*;

fn path(text: &str) -> AccountPath {
    AccountPath::parse(text).unwrap()
}

/// Few letters, so that two of them often nearly meet: among them all that the mapping
/// writes itself.
fn paths() -> impl Strategy<Value = AccountPath> {
    let byte = prop_oneof![
        prop::sample::select(vec!["a", "x", "X", "A", "d", "u", "2", "D", "-", "_", ".", "%2D", "%5F", "%C3"])
            .prop_map(str::to_owned),
        "[A-Za-z0-9._-]",
        "%[0-9A-F]{2}",
    ];
    let segment = prop::collection::vec(byte, 1..6).prop_map(|bytes| bytes.concat());
    let root = prop::sample::select(ROOTS.to_vec());
    (root, prop::collection::vec(segment, 1..4)).prop_map(|(root, rest)| path(&format!("{root}:{}", rest.join(":"))))
}

fn assets() -> impl Strategy<Value = String> {
    prop_oneof!["[A-Z]", "[A-Z][A-Z0-9._-]{0,31}", "(TRUE|FALSE|NULL)", "[A-Z][A-Z]{20,31}"]
}

fn is_component(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn accounts_come_back(path in paths()) {
        let name = beancount_account(&path);
        prop_assert!(name.split(':').all(is_component), "{}", name);
        prop_assert_eq!(beancount_path(&name), Some(path));
    }

    #[test]
    fn two_accounts_have_two_names(one in paths(), other in paths()) {
        prop_assert_eq!(one == other, beancount_account(&one) == beancount_account(&other));
    }

    #[test]
    fn a_name_is_none_or_that_of_its_account(name in "(Assets|Income)(:[A-Z0-9x-]{1,6}){1,2}") {
        if let Some(path) = beancount_path(&name) {
            prop_assert_eq!(beancount_account(&path), name);
        }
    }

    #[test]
    fn assets_come_back(assets in prop::collection::btree_set(assets(), 1..20)) {
        let names: std::collections::BTreeSet<String> = assets.iter().map(|asset| beancount_asset(asset)).collect();
        prop_assert_eq!(names.len(), assets.len());
        for asset in &assets {
            let name = beancount_asset(asset);
            let (first, last) = (name.as_bytes()[0], name.as_bytes()[name.len() - 1]);
            prop_assert!((2..=24).contains(&name.len()), "{}", name);
            prop_assert!(first.is_ascii_uppercase() && (last.is_ascii_uppercase() || last.is_ascii_digit()), "{}", name);
            let found = beancount_asset_of(&name, assets.iter().map(String::as_str));
            prop_assert_eq!(found, Some(asset.as_str()));
        }
    }

    #[test]
    fn texts_differ_as_before_and_hold_nothing_special(one in "\\PC{0,6}", other in "\\PC{0,6}") {
        prop_assert_eq!(one == other, text(&one) == text(&other));
        prop_assert!(text(&one).bytes().all(|b| b.is_ascii_graphic() && !b"\",;[\\]".contains(&b)));
    }
}

#[test]
fn names_are_as_the_help_says() {
    for (text, name) in [
        ("assets:psp:stripe", "Assets:Psp:Stripe"),
        ("liabilities:merchant:m_42", "Liabilities:Merchant:M-u42"),
        ("assets:psp:Stripe", "Assets:Psp:X-xStripe"),
        ("income:9.a-b%C3", "Income:9-da--b-C3"),
        ("equity:%C3:_:-:.", "Equity:X-x-C3:X-x-u:X-x--:X-x-d"),
    ] {
        assert_eq!(beancount_account(&path(text)), name);
    }
    for none in ["", "Assets", "Assets:", "Assets:-u", "Assets:A-", "Assets:A-x", "Assets:X-xa", "Foo:A", "Assets:a"] {
        assert_eq!(beancount_path(none), None, "{none}");
    }
    for (asset, name) in [
        ("EUR", "EUR"),
        ("SKU-7.A_B", "SKU-7.A_B"),
        ("A", "A'0"),
        ("NULL", "NULL'0"),
        ("ABC-", "ABC-'0"),
        ("ABCDEFGHIJKLMNOPQRSTUVWX", "ABCDEFGHIJKLMNOPQRSTUVWX"),
        ("ABCDEFGHIJKLMNOPQRSTUVWXY", "X'61B692ADDEF74C02D8B5FD"),
    ] {
        assert_eq!(beancount_asset(asset), name);
    }
    assert_eq!(journal_asset("EUR"), "EUR");
    assert_eq!(journal_asset("E"), "\"E\"");
    assert_eq!(text("stripe/ü 1;[x]"), "stripe/%C3%BC%201%3B%5Bx%5D");
}
