//! Beancount: every account is opened, every asset a commodity, before the first use.

use super::layout::{Layout, date, decimal, place, sides};
use super::names;
use postonce_consumer::read::export::{Event, MovedAccount, Posting};
use postonce_schema::{AccountPath, Timestamp};
use std::collections::BTreeMap;
use std::io::{self, Write};

#[derive(Default)]
pub struct Beancount {
    opening: Option<Opening>,
    /// With the time of the first posting.
    assets: BTreeMap<String, Timestamp>,
}

/// An account that may still come with more assets.
struct Opening {
    path: AccountPath,
    first: Timestamp,
    assets: Vec<String>,
}

impl Beancount {
    fn open(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let Some(Opening { path, first, assets }) = self.opening.take() else {
            return Ok(());
        };
        let (date, name) = (date(first), names::beancount_account(&path));
        writeln!(out, "{date} open {name} {}\n  account: \"{}\"", assets.join(","), path.as_str())
    }
}

impl Layout for Beancount {
    fn head(&mut self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"; Check it with: bean-check FILE\n\noption \"title\" \"Postonce\"\n\n")
    }

    fn declares_accounts(&self) -> bool {
        true
    }

    fn account(&mut self, account: &MovedAccount, out: &mut dyn Write) -> io::Result<()> {
        let MovedAccount { path, asset, first } = account;
        match self.assets.get_mut(asset) {
            Some(earliest) => *earliest = (*earliest).min(*first),
            None => drop(self.assets.insert(asset.clone(), *first)),
        }
        let name = names::beancount_asset(asset);
        if let Some(same) = self.opening.as_mut().filter(|opening| opening.path == *path) {
            same.first = same.first.min(*first);
            same.assets.push(name);
            return Ok(());
        }
        self.open(out)?;
        self.opening = Some(Opening { path: path.clone(), first: *first, assets: vec![name] });
        Ok(())
    }

    fn end_of_accounts(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.open(out)?;
        out.write_all(b"\n")?;
        self.assets.iter().try_for_each(|(asset, first)| {
            writeln!(out, "{} commodity {}\n  asset: \"{asset}\"", date(*first), names::beancount_asset(asset))
        })
    }

    fn event(&mut self, event: &Event, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "\n{} * \"{}\"\n  event: \"{}\"\n  time: \"{}\"\n  resource: \"{}\"\n  place: \"{}\"",
            date(event.effective_at),
            event.type_name,
            event.event_id,
            event.effective_at,
            names::text(&event.resource),
            names::text(&place(event)),
        )
    }

    fn posting(&mut self, posting: &Posting, out: &mut dyn Write) -> io::Result<()> {
        let asset = names::beancount_asset(&posting.asset);
        sides(posting).into_iter().try_for_each(|(account, amount)| {
            writeln!(out, "  {}  {} {asset}", names::beancount_account(account), decimal(amount, &posting.asset))
        })
    }
}
