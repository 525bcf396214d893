//! The rows of a ledger as COPY BINARY wants them, transaction by transaction.
//!
//! They are read from a ledger that the consumer has filled, whatever its tables are by now:
//! the ceiling then writes the very same rows.

use crate::ledger::Ledger;
use anyhow::{Context, Result, bail, ensure};
use futures_util::TryStreamExt;
use sqlx::{Connection, PgConnection};

/// The beginning of binary COPY data: signature, flags, no extension.
const HEADER: [u8; 19] = *b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// Its end.
const TRAILER: [u8; 2] = [0xff, 0xff];

/// The columns that name a row's offset, one in each table that has any.
const OFFSETS: [&str; 2] = ["message_offset", "base_offset"];

/// A COPY with all its rows.
pub struct Copy {
    pub statement: String,
    pub rows: Vec<u8>,
}

/// What was written in one transaction.
pub type Transaction = Vec<Copy>;

/// How the rows of a table find their transaction.
enum BelongsTo {
    /// By stream and this column, an offset.
    Offset(&'static str),
    /// By stream and number of the batch.
    Batch,
    /// By the resource of an event.
    Resource,
    /// To none: written again and again, or once for many.
    Nothing,
}

struct Table {
    name: String,
    columns: String,
    belongs: BelongsTo,
}

/// The transactions of the worker that had these streams, in their order.
pub async fn of_streams(ledger: &Ledger<'_>, streams: &[i64]) -> Result<Vec<Transaction>> {
    let mut connection = PgConnection::connect(&ledger.url).await?;
    let batches: i64 =
        sqlx::query_scalar("SELECT coalesce(max(seq), 0) FROM postonce.batches").fetch_one(&mut connection).await?;
    let mut transactions: Vec<Transaction> = (0..batches).map(|_| Vec::new()).collect();
    let list = streams.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    for table in tables(&mut connection).await? {
        // ctid: as they were written.
        let from = match table.belongs {
            BelongsTo::Nothing => continue,
            BelongsTo::Offset(column) => format!(
                "JOIN postonce.batches b ON b.stream = t.stream
                  AND t.{column} >= b.from_offset AND t.{column} < b.next_offset"
            ),
            BelongsTo::Batch => "JOIN postonce.batches b ON b.stream = t.stream AND b.seq = t.seq".to_owned(),
            BelongsTo::Resource => "JOIN postonce.events e ON e.resource_id = t.resource_id
                 JOIN postonce.batches b ON b.stream = e.stream
                  AND e.message_offset >= b.from_offset AND e.message_offset < b.next_offset"
                .to_owned(),
        };
        let query = format!(
            "COPY (SELECT b.seq, {} FROM postonce.{} t {from} WHERE b.stream IN ({list}) ORDER BY b.seq, t.ctid)
             TO STDOUT (FORMAT binary)",
            table.columns, table.name
        );
        for (seq, rows) in by_first_column(&read(&mut connection, &query).await?)? {
            let transaction = usize::try_from(seq - 1).ok().and_then(|place| transactions.get_mut(place));
            transaction.context("a batch beyond the last")?.push(Copy { statement: table.write(), rows });
        }
    }
    Ok(transactions)
}

/// The tables that belong to no transaction, as they are at the end.
pub async fn at_the_end(ledger: &Ledger<'_>) -> Result<Transaction> {
    let mut connection = PgConnection::connect(&ledger.url).await?;
    let mut copies = Transaction::new();
    for table in tables(&mut connection).await? {
        if matches!(table.belongs, BelongsTo::Nothing) {
            let query = format!(
                "COPY (SELECT {} FROM postonce.{} t ORDER BY t.ctid) TO STDOUT (FORMAT binary)",
                table.columns, table.name
            );
            let rows = read(&mut connection, &query).await?;
            if rows.len() > HEADER.len() + TRAILER.len() {
                copies.push(Copy { statement: table.write(), rows });
            }
        }
    }
    Ok(copies)
}

impl Table {
    fn write(&self) -> String {
        format!("COPY postonce.{} ({}) FROM STDIN (FORMAT binary)", self.name, self.columns.replace("t.", ""))
    }
}

/// Every table of the ledger, by its columns.
async fn tables(connection: &mut PgConnection) -> Result<Vec<Table>> {
    let found: Vec<(String, Vec<String>)> = sqlx::query_as(
        "SELECT c.relname::text, array_agg(a.attname::text ORDER BY a.attnum)
         FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
         WHERE c.relnamespace = 'postonce'::regnamespace AND c.relkind = 'r' AND c.relname <> '_sqlx_migrations'
           AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
         GROUP BY c.relname ORDER BY c.relname",
    )
    .fetch_all(connection)
    .await?;
    let table = |(name, columns): (String, Vec<String>)| {
        let has = |wanted: &str| columns.iter().any(|column| column == wanted);
        let offset = OFFSETS.into_iter().find(|column| has(column)).filter(|_| has("stream"));
        let belongs = match offset {
            Some(column) => BelongsTo::Offset(column),
            None if has("stream") && has("seq") => BelongsTo::Batch,
            None if name == "resources" => BelongsTo::Resource,
            None => BelongsTo::Nothing,
        };
        let columns = columns.iter().map(|column| format!("t.{column}")).collect::<Vec<_>>().join(", ");
        Table { name, columns, belongs }
    };
    Ok(found.into_iter().map(table).collect())
}

async fn read(connection: &mut PgConnection, query: &str) -> Result<Vec<u8>> {
    let mut stream = connection.copy_out_raw(query).await?;
    let mut all = Vec::new();
    while let Some(piece) = stream.try_next().await? {
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

/// Splits rows by their first column, a bigint, by which they are sorted, and takes it off.
fn by_first_column(copy: &[u8]) -> Result<Vec<(i64, Vec<u8>)>> {
    let mut rest = copy.strip_prefix(&HEADER).context("this is no binary COPY")?;
    let mut groups: Vec<(i64, Vec<u8>)> = Vec::new();
    loop {
        let columns = i16::from_be_bytes(take(&mut rest)?);
        if columns == -1 {
            break;
        }
        ensure!(i32::from_be_bytes(take(&mut rest)?) == 8, "the first column is no bigint");
        let group = i64::from_be_bytes(take(&mut rest)?);
        let row = rest;
        for _ in 1..columns {
            let length = i32::from_be_bytes(take(&mut rest)?);
            // -1 is null.
            rest = rest.get(usize::try_from(length.max(0))?..).context("a row that breaks off")?;
        }
        let row = row.get(..row.len() - rest.len()).context("a row that breaks off")?;
        match groups.last_mut() {
            Some((number, rows)) if *number == group => put(rows, columns - 1, row),
            Some((number, _)) if *number > group => bail!("rows are not sorted by their first column"),
            _ => {
                let mut rows = HEADER.to_vec();
                put(&mut rows, columns - 1, row);
                groups.push((group, rows));
            }
        }
    }
    groups.iter_mut().for_each(|(_, rows)| rows.extend_from_slice(&TRAILER));
    Ok(groups)
}

fn put(rows: &mut Vec<u8>, columns: i16, row: &[u8]) {
    rows.extend_from_slice(&columns.to_be_bytes());
    rows.extend_from_slice(row);
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let (bytes, after) = rest.split_first_chunk().context("a row that breaks off")?;
    *rest = after;
    Ok(*bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(fields: &[Option<&[u8]>]) -> Vec<u8> {
        let mut row = i16::try_from(fields.len()).unwrap().to_be_bytes().to_vec();
        for field in fields {
            match field {
                Some(bytes) => {
                    row.extend_from_slice(&i32::try_from(bytes.len()).unwrap().to_be_bytes());
                    row.extend_from_slice(bytes);
                }
                None => row.extend_from_slice(&(-1_i32).to_be_bytes()),
            }
        }
        row
    }

    #[test]
    fn rows_are_split_and_lose_their_first_column() {
        let number = |n: i64| n.to_be_bytes();
        let rows = [
            row(&[Some(&number(1)), Some(b"a"), None]),
            row(&[Some(&number(1)), Some(b""), Some(b"b")]),
            row(&[Some(&number(3)), None, Some(b"c")]),
        ];
        let copy = [&HEADER[..], &rows.concat(), &TRAILER].concat();
        let first = [&HEADER[..], &row(&[Some(b"a"), None]), &row(&[Some(b""), Some(b"b")]), &TRAILER].concat();
        let third = [&HEADER[..], &row(&[None, Some(b"c")]), &TRAILER].concat();
        assert_eq!(by_first_column(&copy).unwrap(), [(1, first), (3, third)]);
        for length in 0..copy.len() - 1 {
            assert!(by_first_column(&copy[..length]).is_err(), "cut off after {length} bytes");
        }
    }
}
