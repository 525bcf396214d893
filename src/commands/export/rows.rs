//! CSV and JSONL: one row for each side of each posting, under our own names.

use super::layout::{Layout, decimal, sides};
use postonce_consumer::read::export::{Event, Posting};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, Write};

/// RFC 4180: CRLF, a header, quotes where a field needs them.
pub struct Csv;

/// One JSON object a line, with the columns of CSV as members.
pub struct Jsonl;

const COLUMNS: &str =
    "effective_at,event_id,type,resource,topic,partition,offset,line,account,asset,minor_units,amount";

impl Layout for Csv {
    fn head(&mut self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "{COLUMNS}\r\n")
    }

    fn posting(&mut self, posting: &Posting, out: &mut dyn Write) -> io::Result<()> {
        let Posting { event, line, asset, .. } = posting;
        let Event { effective_at, event_id, type_name, topic, partition, offset, .. } = event;
        let (resource, topic) = (field(&event.resource), field(topic));
        sides(posting).into_iter().try_for_each(|(account, minor_units)| {
            let (account, amount) = (account.as_str(), decimal(minor_units, asset));
            write!(out, "{effective_at},{event_id},{type_name},{resource},{topic},{partition},{offset},{line},")?;
            write!(out, "{account},{asset},{minor_units},{amount}\r\n")
        })
    }
}

/// The characters that make a spreadsheet compute a cell, wide ones too, and the apostrophe
/// that says "text": with it in the list one apostrophe in front is always ours.
const COMPUTED: [char; 9] = ['=', '+', '-', '@', '＝', '＋', '－', '＠', '\''];

/// Resource may hold anything but control characters, and a topic's name may begin with a
/// minus. The other columns have alphabets of their own, without quotes and commas, and no
/// text among them begins with such a character.
fn field(text: &str) -> Cow<'_, str> {
    let mark = if text.trim_start().starts_with(COMPUTED) { "'" } else { "" };
    let quoted = text.contains(['"', ',', '\r', '\n']) || text.starts_with(' ') || text.ends_with(' ');
    match (mark, quoted) {
        ("", false) => Cow::Borrowed(text),
        (mark, false) => Cow::Owned(format!("{mark}{text}")),
        (mark, true) => Cow::Owned(format!("\"{mark}{}\"", text.replace('"', "\"\""))),
    }
}

/// Minor units are a string, as everywhere: other programs' numbers may be too small.
#[derive(Serialize)]
struct Entry<'p> {
    effective_at: String,
    event_id: &'p str,
    #[serde(rename = "type")]
    type_name: &'p str,
    resource: &'p str,
    topic: &'p str,
    partition: i32,
    offset: i64,
    line: i16,
    account: &'p str,
    asset: &'p str,
    minor_units: String,
    amount: String,
}

impl Layout for Jsonl {
    fn head(&mut self, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    fn posting(&mut self, posting: &Posting, out: &mut dyn Write) -> io::Result<()> {
        let Posting { event, line, asset, .. } = posting;
        sides(posting).into_iter().try_for_each(|(account, minor_units)| {
            let entry = Entry {
                effective_at: event.effective_at.to_string(),
                event_id: &event.event_id,
                type_name: &event.type_name,
                resource: &event.resource,
                topic: &event.topic,
                partition: event.partition,
                offset: event.offset,
                line: *line,
                account: account.as_str(),
                asset,
                minor_units: minor_units.to_string(),
                amount: decimal(minor_units, asset),
            };
            serde_json::to_writer(&mut *out, &entry)?;
            out.write_all(b"\n")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_quoted_where_it_must() {
        for (text, expected) in [
            ("stripe/acct_1/pi_1", "stripe/acct_1/pi_1"),
            ("a,b", "\"a,b\""),
            ("say \"x\"", "\"say \"\"x\"\"\""),
            (" a", "\" a\""),
            ("größe", "größe"),
            ("=1+1", "'=1+1"),
            (" +1", "\"' +1\""),
            ("-1,\"x\"", "\"'-1,\"\"x\"\"\""),
            ("＠x", "'＠x"),
            ("'=1", "''=1"),
            ("a=b", "a=b"),
        ] {
            assert_eq!(field(text), expected);
        }
    }
}
