use super::*;
use crate::POSITIONS_TOML;

#[test]
fn the_shipped_rules_are_those_of_the_design() {
    let rules = Rules::parse(POSITIONS_TOML).expect("rules");
    let kinds: Vec<String> = rules.versions()[0]
        .kinds
        .iter()
        .map(|kind| {
            let states: Vec<String> = kind.states.iter().map(|s| format!("{} {}", s.name, s.rank)).collect();
            format!("{}: {}", kind.name, states.join(", "))
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "payment: created 1, authorized 2, cancelled 3, failed 4, succeeded 5, reversed 5",
            "fee: charged 1, reversed 1",
            "refund: created 1, cancelled 2, succeeded 3, failed 3",
            "dispute: inquiry 1, opened 2, won 2, lost 2",
            "payout: created 1, cancelled 2, paid 3, failed 3",
            "topup: created 1, failed 2, succeeded 3, reversed 3",
            "transfer: created 1, failed 2, succeeded 3, reversed 3",
            "settlement: created 1, failed 2, succeeded 3, reversed 3",
            "conversion: created 1, failed 2, succeeded 3, reversed 3",
            "journal: posted 1, voided 1",
        ]
    );
}

fn one_line(line: &str) -> String {
    format!(
        "[[version]]\nversion = 1\nfrom = \"1970-01-01T00:00:00Z\"\n[[version.kind]]\nname = \"points\"\nstate = [\n  {{ name = \"granted\", rank = 1, position = [\n    {line}\n  ] }},\n]\n"
    )
}

#[test]
fn a_company_may_bring_its_own_kinds_and_units() {
    let text = one_line(
        r#"{ debit = "expenses:points", credit = "liabilities:member:{member}", amount = "points", asset = "unit" },"#,
    );
    let rules = Rules::parse(&text).expect("rules");
    let kind = rules.at(Timestamp::EPOCH).kind("points").expect("the kind");
    let roles: Vec<(&str, Role)> = kind.fields.iter().map(|f| (f.name.as_str(), f.role)).collect();
    assert_eq!(roles, [("member", Role::Text), ("points", Role::Amount), ("unit", Role::Asset)]);
}

#[test]
fn mistakes_are_named_with_their_line() {
    for (line, why) in [
        (r#"{ debit = "cash", credit = "assets:b", amount = "a" },"#, "a root alone"),
        (r#"{ debit = "cash:x", credit = "assets:b", amount = "a" },"#, "its root is not one of"),
        (r#"{ debit = "assets:{x", credit = "assets:b", amount = "a" },"#, "has no }"),
        (r#"{ debit = "assets:{X}", credit = "assets:b", amount = "a" },"#, "not a field name"),
        (r#"{ debit = "assets:a b", credit = "assets:b", amount = "a" },"#, "a segment holds"),
        (r#"{ debit = "assets:{a}", credit = "assets:b", amount = "a" },"#, "is read as Text elsewhere"),
        (r#"{ debit = "assets:a", credit = "assets:b", amount = "a", currency = "c", asset = "d" },"#, "not both"),
        (r#"{ debit = "assets:a", credit = "assets:b", amount = "a", rate = "c" },"#, "unknown field"),
    ] {
        let error = Rules::parse(&one_line(line)).expect_err(line);
        assert!(error.why.contains(why), "{line}: {error}");
        assert_eq!(error.line, 8, "{line}: {error}");
    }
}

#[test]
fn versions_ascend_from_1970() {
    let line = r#"{ debit = "assets:a", credit = "assets:b", amount = "a" },"#;
    let first = one_line(line);
    assert!(Rules::parse(&first.replace("1970", "1971")).is_err());
    let second = first.replace("version = 1", "version = 2").replace("1970", "2026");
    let both = Rules::parse(&format!("{first}{second}")).expect("two versions");
    let number = |time: &str| both.at(Timestamp::parse(time).expect("a time")).number;
    assert_eq!(number("2025-12-31T23:59:59.999999Z"), 1);
    assert_eq!(number("2026-01-01T00:00:00Z"), 2);
    assert!(Rules::parse(&format!("{second}{first}")).is_err());
    assert!(Rules::parse(&format!("{first}{first}")).is_err());
}

#[test]
fn a_change_is_found_with_its_line() {
    let rules = Rules::parse(POSITIONS_TOML).expect("rules");
    let frozen = rules.versions()[0].text();
    assert_eq!(rules.versions()[0].first_change(&frozen), None);
    let altered = Rules::parse(&POSITIONS_TOML.replacen("\"income:fees\"", "\"income:gifts\"", 1)).expect("rules");
    assert_ne!(altered.versions()[0].hash(), rules.versions()[0].hash());
    let (line, was, now) = altered.versions()[0].first_change(&frozen).expect("a change");
    assert!(POSITIONS_TOML.lines().nth(line - 1).expect("the line").contains("income:fees"));
    assert!(was.contains("credit income:fees") && now.contains("credit income:gifts"));
    // Comments and white space are not rules.
    let commented = Rules::parse(&format!("# a comment\n{POSITIONS_TOML}")).expect("rules");
    assert_eq!(commented.versions()[0].hash(), rules.versions()[0].hash());
}
