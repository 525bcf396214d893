//! What a format is asked to write, in this order: head, accounts and what follows from
//! them, then event by event the postings.

use postonce_consumer::read::MinorUnits;
use postonce_consumer::read::export::{Event, MovedAccount, Posting};
use std::io::{self, Write};

use crate::table;

/// One format.
pub trait Layout {
    fn head(&mut self, out: &mut dyn Write) -> io::Result<()>;

    /// Whether accounts stand in the file before they are used.
    fn declares_accounts(&self) -> bool {
        false
    }

    /// In the order of path and asset.
    fn account(&mut self, _account: &MovedAccount, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    /// After the last account.
    fn end_of_accounts(&mut self, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    /// Before the first posting of each event.
    fn event(&mut self, _event: &Event, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    fn posting(&mut self, posting: &Posting, out: &mut dyn Write) -> io::Result<()>;
}

/// The two sides of a posting: account and signed minor units, debit first.
pub fn sides(posting: &Posting) -> [(&postonce_schema::AccountPath, i64); 2] {
    [(&posting.debit, posting.amount), (&posting.credit, -posting.amount)]
}

/// Minor units as a decimal of the asset.
pub fn decimal(minor_units: i64, asset: &str) -> String {
    table::amount(MinorUnits(i128::from(minor_units)), asset)
}

/// `2026-01-31`, in UTC.
pub fn date(time: postonce_schema::Timestamp) -> String {
    time.to_string().chars().take(10).collect()
}

/// `topic/partition/offset`
pub fn place(event: &Event) -> String {
    format!("{}/{}/{}", event.topic, event.partition, event.offset)
}
