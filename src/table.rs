//! How results look on stdout: columns for people, one JSON document for programs.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use postonce_consumer::read::MinorUnits;
use serde::Serialize;
use std::io::{self, Write};

/// Columns without borders or colours: `grep`, `awk` and a terminal read the same.
/// Headings that begin with `>` stand over numbers, which are aligned to the right.
pub fn columns<R: IntoIterator<Item = String>>(headings: &[&str], rows: impl IntoIterator<Item = R>) -> String {
    let mut table = Table::new();
    // Not by the terminal's width: a wrapped id cannot be copied.
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.iter().map(|heading| heading.trim_start_matches('>')));
    table.add_rows(rows);
    for (column, heading) in table.column_iter_mut().zip(headings) {
        column.set_padding((0, 2));
        if heading.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// `1234` minor units of EUR are `12.34`, of JPY `1234`, of KWD `1.234`.
pub fn amount(MinorUnits(units): MinorUnits, asset: &str) -> String {
    let decimals = usize::from(postonce_schema::currency::decimals(asset).unwrap_or(0));
    let sign = if units < 0 { "-" } else { "" };
    let digits = format!("{:0>width$}", units.unsigned_abs(), width = decimals + 1);
    let (whole, fraction) = digits.split_at(digits.len() - decimals);
    let point = if decimals == 0 { "" } else { "." };
    format!("{sign}{whole}{point}{fraction}")
}

/// Text that came with an event, made harmless: an escape sequence in it could
/// rewrite the terminal, and a change of writing direction could disguise it.
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// Whether a terminal does something at it but to show it: control characters, and changes
/// of the writing direction.
fn steers(c: char) -> bool {
    let turns = matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns
}

/// What is not there.
pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| visible(&value.to_string()))
}

/// One JSON document. What could steer a terminal stands in it as `\uXXXX`: the same
/// text to every reader of JSON, and harmless where a person looks at it.
pub fn json(value: &impl Serialize) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    let mut out = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        // Outside its strings JSON has no such character but its own line ends.
        if c != '\n' && steers(c) {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out.push('\n');
    Ok(out)
}

/// Writes to stdout. A reader that has seen enough (`| head`) is no error.
pub fn print(text: &str) -> io::Result<()> {
    print_bytes(text.as_bytes())
}

/// Writes bytes to stdout as they are.
pub fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_the_decimals_of_their_asset() {
        let cases = [
            (1234, "EUR", "12.34"),
            (-5, "EUR", "-0.05"),
            (0, "EUR", "0.00"),
            (1234, "JPY", "1234"),
            (-1234, "KWD", "-1.234"),
            (1, "KWD", "0.001"),
            (7, "POINTS", "7"),
            (i128::from(i64::MAX) * 1000, "EUR", "92233720368547758070.00"),
        ];
        for (units, asset, expected) in cases {
            assert_eq!(amount(MinorUnits(units), asset), expected, "{units} {asset}");
        }
        assert!(amount(MinorUnits(i128::MIN), "EUR").starts_with("-17014"), "the least number has no positive twin");
    }

    #[test]
    fn text_cannot_steer_the_terminal() {
        assert_eq!(visible("stripe/ü\u{1b}[2J\r\n"), "stripe/ü\\u{1b}[2J\\u{d}\\u{a}");
        assert_eq!(visible("a\u{202e}b\u{9b}c"), "a\\u{202e}b\\u{9b}c");
    }

    #[test]
    fn json_cannot_steer_it_either_and_means_the_same() {
        let value = "a\u{1b}[2J\u{9b}\u{7f}\u{202e}é\n\"\\";
        let text = json(&value).unwrap();
        assert_eq!(text, "\"a\\u001b[2J\\u009b\\u007f\\u202eé\\n\\\"\\\\\"\n");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), value);
    }

    #[test]
    fn numbers_are_aligned_and_lines_end_without_spaces() {
        let text = columns(
            &["account", ">balance"],
            [["a".to_owned(), "1.00".to_owned()], ["long".to_owned(), "12.00".to_owned()]],
        );
        assert_eq!(text, "account  balance\na           1.00\nlong       12.00\n");
    }
}
