//! The messages that were refused last, from the database.

use crate::args::DatabaseArgs;
use crate::reader;
use postonce_consumer::cases::quarantine::{Filter, Refused, list};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// More do not fit on a screen.
const ROWS: u16 = 50;
const ASK_EVERY: Duration = Duration::from_secs(2);

/// What is known of them.
#[derive(Clone)]
pub enum Refusals {
    /// And why not.
    Unknown(String),
    /// Open ones, newest first.
    Known(Vec<Refused>),
}

/// Asked for on a thread of its own: the screen waits for no database.
pub struct Watch(Arc<Mutex<Refusals>>);

impl Watch {
    pub fn begin(database: Option<DatabaseArgs>) -> std::io::Result<Self> {
        let Some(database) = database else {
            let why = "with --database-url the messages that were refused last stand here";
            return Ok(Self(Arc::new(Mutex::new(Refusals::Unknown(why.to_owned())))));
        };
        let known = Arc::new(Mutex::new(Refusals::Unknown("asking the database".to_owned())));
        let shared = Arc::clone(&known);
        // It ends with the process.
        thread::Builder::new().name("refused".to_owned()).spawn(move || {
            loop {
                let now = ask(&database);
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = now;
                thread::sleep(ASK_EVERY);
            }
        })?;
        Ok(Self(known))
    }

    pub fn last(&self) -> Refusals {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn ask(database: &DatabaseArgs) -> Refusals {
    let page = reader::ask(database, async |connection| Ok(list(connection, &Filter::default(), ROWS, None).await?));
    match page {
        Ok(page) => Refusals::Known(page.messages),
        Err(error) => Refusals::Unknown(format!("{error:#}")),
    }
}
