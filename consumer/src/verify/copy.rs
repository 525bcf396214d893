//! Rows of a big table as they come from `COPY … TO STDOUT (FORMAT binary)`: read one
//! by one from the wire, never held together.
//! <https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-FILE-FORMATS>

use crate::rows::unix_micros;
use futures_util::TryStreamExt;
use sqlx::postgres::PgConnection;

const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";
/// Signature, flags and the length of the header's extension.
const HEADER: usize = SIGNATURE.len() + 8;

/// What came is not what was asked for.
#[derive(Debug, thiserror::Error)]
#[error("Postgres answers COPY with what cannot be read: {0}")]
pub struct Unreadable(&'static str);

/// One row; its fields are taken in their order.
pub struct Row<'a> {
    fields: &'a [u8],
}

/// Copies the rows of `select` out and hands each to `each`.
pub async fn copy_out<E>(
    connection: &mut PgConnection,
    select: &str,
    mut each: impl FnMut(Row<'_>) -> Result<(), E>,
) -> Result<(), E>
where
    E: From<sqlx::Error> + From<Unreadable>,
{
    let statement = format!("COPY ({select}) TO STDOUT (FORMAT binary)");
    let mut pieces = connection.copy_out_raw(&statement).await?;
    let mut held: Vec<u8> = Vec::new();
    let mut begun = false;
    while let Some(piece) = pieces.try_next().await? {
        // Postgres sends a row in a piece: as a rule nothing is held over.
        let whole = held.is_empty();
        if !whole {
            held.extend_from_slice(&piece);
        }
        let bytes: &[u8] = if whole { &piece } else { &held };
        let mut rest = bytes;
        if !begun {
            match header(rest)? {
                Some(after) => (rest, begun) = (after, true),
                None if whole => {
                    held.extend_from_slice(&piece);
                    continue;
                }
                None => continue,
            }
        }
        loop {
            match tuple(rest)? {
                Tuple::Row(row, after) => {
                    each(row)?;
                    rest = after;
                }
                Tuple::End(after) => rest = after,
                Tuple::Cut => break,
            }
        }
        held = rest.to_vec();
    }
    if begun && held.is_empty() { Ok(()) } else { Err(Unreadable("it ends in the middle of a row").into()) }
}

fn header(bytes: &[u8]) -> Result<Option<&[u8]>, Unreadable> {
    if bytes.len() < HEADER {
        return Ok(None);
    }
    let (header, rest) = bytes.split_at(HEADER);
    // No flags, no extension: what every Postgres sends.
    if header.starts_with(SIGNATURE) && header[SIGNATURE.len()..] == [0; 8] {
        Ok(Some(rest))
    } else {
        Err(Unreadable("another header"))
    }
}

/// What bytes begin with, and what follows it.
enum Tuple<'a> {
    Row(Row<'a>, &'a [u8]),
    /// The end marker: a row without fields.
    End(&'a [u8]),
    /// The row is not all there yet.
    Cut,
}

fn tuple(bytes: &[u8]) -> Result<Tuple<'_>, Unreadable> {
    let Some((count, fields)) = bytes.split_first_chunk::<2>() else { return Ok(Tuple::Cut) };
    let count = i16::from_be_bytes(*count);
    if count == -1 {
        return Ok(Tuple::End(fields));
    }
    let mut rest = fields;
    for _ in 0..count {
        let Some((length, after)) = rest.split_first_chunk::<4>() else { return Ok(Tuple::Cut) };
        rest = match i32::from_be_bytes(*length) {
            -1 => after,
            length => {
                let length = usize::try_from(length).map_err(|_| Unreadable("a field of negative length"))?;
                let Some(after) = after.get(length..) else { return Ok(Tuple::Cut) };
                after
            }
        };
    }
    let (fields, rest) = fields.split_at(fields.len() - rest.len());
    Ok(Tuple::Row(Row { fields }, rest))
}

impl<'a> Row<'a> {
    /// The next field; none where it is null.
    pub fn optional(&mut self) -> Result<Option<&'a [u8]>, Unreadable> {
        let short = Unreadable("a row with too few fields");
        let (length, after) = self.fields.split_first_chunk::<4>().ok_or(short)?;
        let length = i32::from_be_bytes(*length);
        if length == -1 {
            self.fields = after;
            return Ok(None);
        }
        let split = usize::try_from(length).ok().and_then(|length| after.split_at_checked(length));
        let (field, rest) = split.ok_or(Unreadable("a field of a wrong length"))?;
        self.fields = rest;
        Ok(Some(field))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Unreadable> {
        self.optional()?.ok_or(Unreadable("a null where none can be"))
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        self.bytes()?.try_into().map_err(|_| Unreadable("a field of another size"))
    }

    pub fn i64(&mut self) -> Result<i64, Unreadable> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    pub fn i32(&mut self) -> Result<i32, Unreadable> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub fn i16(&mut self) -> Result<i16, Unreadable> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub fn byte(&mut self) -> Result<u8, Unreadable> {
        Ok(self.array::<1>()?[0])
    }

    /// An `integer[]` of one dimension without nulls, or an empty one.
    pub fn integers(&mut self) -> Result<Vec<i32>, Unreadable> {
        const INT4: i32 = 23;
        let mut rest = self.bytes()?;
        let mut next = || -> Result<i32, Unreadable> {
            let (integer, after) = rest.split_first_chunk::<4>().ok_or(Unreadable("an array that is cut off"))?;
            rest = after;
            Ok(i32::from_be_bytes(*integer))
        };
        let (dimensions, nulls, element) = (next()?, next()?, next()?);
        if dimensions == 0 {
            return Ok(Vec::new());
        }
        if (dimensions, nulls, element) != (1, 0, INT4) {
            return Err(Unreadable("another array than integers in one dimension"));
        }
        let (count, _first_index) = (next()?, next()?);
        let mut integers = Vec::with_capacity(usize::try_from(count).unwrap_or_default().min(self.fields.len()));
        for _ in 0..count {
            if next()? != 4 {
                return Err(Unreadable("an integer of another size"));
            }
            integers.push(next()?);
        }
        if rest.is_empty() { Ok(integers) } else { Err(Unreadable("an array with more than its elements")) }
    }

    pub fn text(&mut self) -> Result<&'a str, Unreadable> {
        text(self.bytes()?)
    }

    pub fn optional_text(&mut self) -> Result<Option<&'a str>, Unreadable> {
        self.optional()?.map(text).transpose()
    }

    /// A timestamptz, in microseconds since 1970.
    pub fn time(&mut self) -> Result<i64, Unreadable> {
        Ok(unix_micros(self.i64()?))
    }

    pub fn optional_time(&mut self) -> Result<Option<i64>, Unreadable> {
        let Some(bytes) = self.optional()? else { return Ok(None) };
        let micros = bytes.try_into().map_err(|_| Unreadable("a time of another size"))?;
        Ok(Some(unix_micros(i64::from_be_bytes(micros))))
    }
}

fn text(bytes: &[u8]) -> Result<&str, Unreadable> {
    std::str::from_utf8(bytes).map_err(|_| Unreadable("a text that is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_only_when_it_is_all_there() {
        let mut bytes = vec![0, 2, 0, 0, 0, 2];
        bytes.extend_from_slice(b"ab\xff\xff\xff\xff");
        for end in 0..bytes.len() {
            assert!(matches!(tuple(&bytes[..end]), Ok(Tuple::Cut)), "{end}");
        }
        bytes.extend_from_slice(&[0xff, 0xff]);
        let Ok(Tuple::Row(mut row, rest)) = tuple(&bytes) else { panic!("no row") };
        assert_eq!((row.text().unwrap(), row.optional().unwrap()), ("ab", None));
        assert!(row.optional().is_err(), "there is no third field");
        assert!(matches!(tuple(rest), Ok(Tuple::End([]))));
    }

    #[test]
    fn what_is_no_row_is_refused() {
        assert!(tuple(&[0, 1, 0xff, 0xff, 0xff, 0xfe]).is_err());
        assert!(header(b"PGCOPY\n\xff\r\n\0\0\0\0\x01\0\0\0\0").is_err());
        assert!(header(b"PGCOPY").unwrap().is_none());
        let mut row = Row { fields: &[0, 0, 0, 1, 7] };
        assert!(row.i64().is_err());
    }
}
