//! The journals of hledger and ledger: the same transactions, other directives.

use super::layout::{Layout, date, decimal, place, sides};
use super::names;
use postonce_consumer::read::export::{Event, MovedAccount, Posting};
use postonce_schema::{AccountPath, currency};
use std::collections::BTreeSet;
use std::io::{self, Write};

/// Whose journal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Hledger,
    Ledger,
}

pub struct Journal {
    program: Program,
    /// The last that was declared: it may come again with another asset.
    declared: Option<AccountPath>,
    assets: BTreeSet<String>,
}

impl Journal {
    pub fn new(program: Program) -> Self {
        Self { program, declared: None, assets: BTreeSet::new() }
    }
}

impl Layout for Journal {
    fn head(&mut self, out: &mut dyn Write) -> io::Result<()> {
        match self.program {
            Program::Hledger => {
                out.write_all(b"; Check it with: hledger check --strict -f FILE\n\ndecimal-mark .\n\n")?;
            }
            Program::Ledger => out.write_all(b"; Check it with: ledger -f FILE --pedantic balance\n\n")?,
        }
        // Undeclared tags are an error under --pedantic.
        out.write_all(b"tag event\ntag time\ntag resource\ntag place\n\n")
    }

    fn declares_accounts(&self) -> bool {
        true
    }

    fn account(&mut self, account: &MovedAccount, out: &mut dyn Write) -> io::Result<()> {
        if !self.assets.contains(&account.asset) {
            self.assets.insert(account.asset.clone());
        }
        if self.declared.as_ref() == Some(&account.path) {
            return Ok(());
        }
        self.declared = Some(account.path.clone());
        writeln!(out, "account {}", account.path.as_str())
    }

    fn end_of_accounts(&mut self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"\n")?;
        for asset in &self.assets {
            let decimals = usize::from(currency::decimals(asset).unwrap_or(0));
            let zeros = "0".repeat(decimals);
            let name = names::journal_asset(asset);
            match self.program {
                // hledger wants the decimal mark even where nothing follows it.
                Program::Hledger => writeln!(out, "commodity 1000.{zeros} {name}")?,
                Program::Ledger if decimals == 0 => writeln!(out, "commodity {name}\n    format 1000 {name}")?,
                Program::Ledger => writeln!(out, "commodity {name}\n    format 1000.{zeros} {name}")?,
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "\n{} * {}\n    ; event: {}\n    ; time: {}\n    ; resource: {}\n    ; place: {}",
            date(event.effective_at),
            event.type_name,
            event.event_id,
            event.effective_at,
            names::text(&event.resource),
            names::text(&place(event)),
        )
    }

    fn posting(&mut self, posting: &Posting, out: &mut dyn Write) -> io::Result<()> {
        let name = names::journal_asset(&posting.asset);
        sides(posting).into_iter().try_for_each(|(account, amount)| {
            writeln!(out, "    {}  {} {name}", account.as_str(), decimal(amount, &posting.asset))
        })
    }
}
