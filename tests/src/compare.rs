//! A ledger's books in the terms of the model, read through the views that people use.

use anyhow::Result;

use crate::books::Ledger;
use crate::model::{Balances, Books, Final};

impl Ledger {
    /// Compare this with [`crate::model::books`] of the same events.
    pub fn model_books(&self) -> Result<Books> {
        let mut books = Books { balances: self.balances()?, ..Books::default() };
        type Row = (String, String, String, String, i32, String);
        let rows: Vec<Row> = self.db.rows(
            "SELECT kind, path, state, to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'),
                    rules_version, facts::text FROM resources",
        )?;
        for (kind, path, state, updated_at, rules_version, facts) in rows {
            let facts = serde_json::from_str(&facts)?;
            let end = Final { state, updated_at, rules_version, facts, position: Balances::new() };
            books.resources.insert((kind, path), end);
        }
        let rows: Vec<(String, String, String, String, String)> = self.db.rows(
            "SELECT kind, resource, account, asset, sum(amount)::text FROM entries
             GROUP BY kind, resource, account, asset HAVING sum(amount) <> 0",
        )?;
        for (kind, path, account, asset, amount) in rows {
            let end = books.resources.entry((kind, path)).or_insert_with(|| panic!("an entry without a resource"));
            end.position.insert((account, asset), amount.parse()?);
        }
        let known = "SELECT encode(event_id, 'hex'), replace(fingerprint::text, '-', '') FROM events
                     UNION ALL SELECT encode(event_id, 'hex'), replace(fingerprint::text, '-', '') FROM conflicts";
        books.known = self.db.rows(known)?.into_iter().collect();
        Ok(books)
    }

    /// Debits minus credits of every account that holds something.
    pub fn balances(&self) -> Result<Balances> {
        let rows: Vec<(String, String, String)> =
            self.db.rows("SELECT account, asset, balance::text FROM account_balances WHERE balance <> 0")?;
        rows.into_iter().map(|(account, asset, balance)| Ok(((account, asset), balance.parse()?))).collect()
    }

    /// The outcomes of a topic's only partition, one letter for each offset, as they
    /// stand in `batches`; a long hole stands as `H` and its length.
    pub fn outcomes(&self) -> Result<String> {
        self.db.one("SELECT coalesce(string_agg(encode(outcomes, 'escape'), '' ORDER BY seq), '') FROM batches")
    }
}
