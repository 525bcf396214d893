//! Bytes from outside, shown so that they can do no harm: text with its control and
//! writing-direction characters made visible, anything else as a hex dump.

use crate::table::visible;
use postonce_schema::Header;
use serde::Serialize;
use std::fmt::Write;

/// A value longer than this is cut, unless all of it is asked for.
const TEXT_LIMIT: usize = 4096;
/// 32 lines of a dump.
const HEX_LIMIT: usize = 512;

/// How much is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Cut,
    Full,
}

/// Bytes for a program.
#[derive(Serialize)]
pub struct Payload {
    /// How many there are, shown or not.
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
    cut: bool,
}

/// A header for a program.
#[derive(Serialize)]
pub struct HeaderPayload {
    name: Payload,
    value: Option<Payload>,
}

impl Payload {
    pub fn of(bytes: &[u8], extent: Extent) -> Self {
        let shown = shown(bytes, extent);
        let cut = shown.len() < bytes.len();
        match std::str::from_utf8(shown) {
            Ok(text) => Self { bytes: bytes.len(), text: Some(text.to_owned()), hex: None, cut },
            Err(_) => Self { bytes: bytes.len(), text: None, hex: Some(hex(shown)), cut },
        }
    }
}

impl HeaderPayload {
    pub fn of(header: &Header<'_>, extent: Extent) -> Self {
        Self { name: Payload::of(header.name, extent), value: header.value.map(|value| Payload::of(value, extent)) }
    }
}

/// As lines, each with a margin: bytes from outside cannot pass for lines of ours.
pub fn block(bytes: Option<&[u8]>, extent: Extent) -> String {
    let Some(bytes) = bytes else { return "  (null)\n".to_owned() };
    if bytes.is_empty() {
        return "  (empty)\n".to_owned();
    }
    let shown = shown(bytes, extent);
    let mut out = String::new();
    match std::str::from_utf8(shown) {
        Ok(text) => text.split('\n').for_each(|line| {
            // Writing to a string does not fail.
            let _ = writeln!(out, "  | {}", visible(line));
        }),
        Err(_) => dump(shown, &mut out),
    }
    if shown.len() < bytes.len() {
        let _ = writeln!(out, "  … {} of {} bytes shown; --full shows all", shown.len(), bytes.len());
    }
    out
}

/// On one line.
pub fn line(bytes: Option<&[u8]>, extent: Extent) -> String {
    let Some(bytes) = bytes else { return "(null)".to_owned() };
    let shown = shown(bytes, extent);
    let text = match std::str::from_utf8(shown) {
        Ok("") => "(empty)".to_owned(),
        Ok(text) => visible(text),
        Err(_) => format!("0x{}", hex(shown)),
    };
    if shown.len() < bytes.len() { format!("{text}… ({} bytes)", bytes.len()) } else { text }
}

/// What is shown of them; of text never half a character.
fn shown(bytes: &[u8], extent: Extent) -> &[u8] {
    if extent == Extent::Full {
        return bytes;
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => text.get(..text.floor_char_boundary(TEXT_LIMIT)).unwrap_or(text).as_bytes(),
        Err(_) => bytes.get(..HEX_LIMIT).unwrap_or(bytes),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Sixteen to a line, as `xxd` has it.
fn dump(bytes: &[u8], out: &mut String) {
    for (row, chunk) in bytes.chunks(16).enumerate() {
        let pairs: Vec<String> = chunk.chunks(2).map(hex).collect();
        let printable = |byte: &u8| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '.' };
        let text: String = chunk.iter().map(printable).collect();
        let _ = writeln!(out, "  {:08x}: {:<39}  {text}", row * 16, pairs.join(" "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keeps_its_lines_behind_a_margin() {
        let text = block(Some("{\n \"a\": \"\u{1b}[2J\u{202e}é\"}\r\nActions:".as_bytes()), Extent::Cut);
        assert_eq!(text, "  | {\n  |  \"a\": \"\\u{1b}[2J\\u{202e}é\"}\\u{d}\n  | Actions:\n");
        assert_eq!(block(None, Extent::Cut), "  (null)\n");
        assert_eq!(block(Some(b""), Extent::Cut), "  (empty)\n");
    }

    #[test]
    fn bytes_are_dumped() {
        let text = block(Some(b"\xff\x00abc\x1b[2J 0123456789"), Extent::Cut);
        assert_eq!(
            text,
            "  00000000: ff00 6162 631b 5b32 4a20 3031 3233 3435  ..abc.[2J 012345\n  00000010: 3637 3839                                6789\n"
        );
        assert_eq!(line(Some(b"\xff\x1b"), Extent::Cut), "0xff1b");
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        let long = "é".repeat(5000);
        let text = block(Some(long.as_bytes()), Extent::Cut);
        assert!(text.ends_with("… 4096 of 10000 bytes shown; --full shows all\n"), "{text}");
        assert!(block(Some(long.as_bytes()), Extent::Full).contains(&long));
        let odd = format!("a{long}");
        assert!(block(Some(odd.as_bytes()), Extent::Cut).contains("4095 of 10001"));
        let payload = Payload::of(&vec![0xff; 1000], Extent::Cut);
        assert_eq!((payload.bytes, payload.cut, payload.hex.unwrap().len()), (1000, true, 1024));
    }
}
