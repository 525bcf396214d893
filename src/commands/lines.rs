//! Lines of a file or of standard input, one at a time, in bounded memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::Context;

use super::interrupt;

/// What the producer's client takes at most; the broker usually takes 1 MB.
pub const MAX_LINE_BYTES: usize = 10_000_000;

/// Where lines come from.
pub struct Lines {
    reader: BufReader<File>,
    line: Vec<u8>,
    number: usize,
    /// As the user knows it.
    pub name: String,
    /// Of a regular file, in bytes.
    pub length: Option<u64>,
    /// Bytes read so far.
    pub position: u64,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Its number, from 1, and its bytes without the line's end.
    Text(usize, &'a [u8]),
    /// Too long to keep; it was read over.
    TooLong(usize),
    End,
    /// SIGINT or SIGTERM. What is left of the input stays unread.
    Interrupted,
}

impl Lines {
    /// Opens a file, or standard input if it is called `-`.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let (file, name) = if path.as_os_str() == "-" {
            (File::from(io::stdin().as_fd().try_clone_to_owned()?), "standard input".to_owned())
        } else {
            let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            (file, path.display().to_string())
        };
        let about = file.metadata().with_context(|| format!("cannot read {name}"))?;
        anyhow::ensure!(!about.is_dir(), "{name} is a directory");
        Ok(Self {
            reader: BufReader::with_capacity(1 << 18, file),
            line: Vec::new(),
            number: 0,
            name,
            length: about.is_file().then_some(about.len()),
            position: 0,
        })
    }

    /// The next line that is not blank.
    pub fn next(&mut self) -> io::Result<Line<'_>> {
        loop {
            self.line.clear();
            self.number += 1;
            let mut too_long = false;
            loop {
                if self.reader.buffer().is_empty() && !interrupt::wait_readable(self.reader.get_ref().as_fd())? {
                    return Ok(Line::Interrupted);
                }
                let bytes = match self.reader.fill_buf() {
                    Ok(bytes) => bytes,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                let end_of_input = bytes.is_empty();
                let end = bytes.iter().position(|byte| *byte == b'\n');
                let (part, taken) = end.map_or((bytes, bytes.len()), |end| (&bytes[..end], end + 1));
                too_long |= self.line.len() + part.len() > MAX_LINE_BYTES;
                if !too_long {
                    self.line.extend_from_slice(part);
                }
                self.reader.consume(taken);
                self.position += u64::try_from(taken).unwrap_or_default();
                if end_of_input && self.line.is_empty() && !too_long {
                    return Ok(Line::End);
                }
                if end.is_some() || end_of_input {
                    break;
                }
            }
            if too_long {
                return Ok(Line::TooLong(self.number));
            }
            if !self.line.trim_ascii().is_empty() {
                let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
                return Ok(Line::Text(self.number, line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(content: &[u8]) -> Lines {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        std::fs::write(&path, content).unwrap();
        Lines::open(&path).unwrap()
    }

    #[test]
    fn numbers_are_those_of_the_file_and_blank_lines_are_no_events() {
        let mut lines = lines(b"a\r\n\n  \nbc\nd");
        assert_eq!(lines.next().unwrap(), Line::Text(1, b"a"));
        assert_eq!(lines.next().unwrap(), Line::Text(4, b"bc"));
        assert_eq!(lines.next().unwrap(), Line::Text(5, b"d"));
        assert_eq!(lines.next().unwrap(), Line::End);
        assert_eq!(lines.next().unwrap(), Line::End);
        assert_eq!(Some(lines.position), lines.length);
    }

    #[test]
    fn a_line_too_long_is_read_over() {
        let mut content = vec![b'x'; MAX_LINE_BYTES];
        content.push(b'\n');
        content.extend(vec![b'y'; MAX_LINE_BYTES + 1]);
        content.extend(b"\nz\n");
        let mut lines = lines(&content);
        assert!(matches!(lines.next().unwrap(), Line::Text(1, text) if text.len() == MAX_LINE_BYTES));
        assert_eq!(lines.next().unwrap(), Line::TooLong(2));
        assert_eq!(lines.next().unwrap(), Line::Text(3, b"z"));
        assert_eq!(lines.next().unwrap(), Line::End);
    }
}
