//! What the commands that show and decide cases have in common.

use crate::table::{or_dash, visible};
use clap::Args;
use postonce_consumer::cases::actions::Action;
use postonce_consumer::cases::cursor::Cursor;
use std::fmt::Write;

/// How many rows are decided in one transaction: locks are short, and a signal is heard.
pub const CHUNK: usize = 500;

/// Which page of which cases `list` shows.
#[derive(Args)]
pub struct PageArgs {
    /// Only those that wait for a person; the default
    #[arg(long, env = "POSTONCE_OPEN", conflicts_with = "all_states")]
    pub open: bool,

    /// The closed ones too
    #[arg(long, env = "POSTONCE_ALL_STATES")]
    pub all_states: bool,

    /// Rows on a page
    #[arg(long, env = "POSTONCE_LIMIT", value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    pub limit: u16,

    /// The next, older page: the cursor that the page before has shown
    #[arg(long, env = "POSTONCE_BEFORE", value_name = "CURSOR")]
    pub before: Option<Cursor>,
}

/// Everything that people have decided on a case.
pub fn push_actions(out: &mut String, actions: &[Action]) {
    if actions.is_empty() {
        return;
    }
    // Writing to a string does not fail.
    let _ = writeln!(out, "\nActions:");
    for action in actions {
        let Action { acted_at, action, person, role, why, code } = action;
        let (action, code) = (visible(action), or_dash(code.as_ref()));
        let _ = write!(out, "  {acted_at} {action} ({code}) by {}, role {}", visible(person), visible(role));
        let _ = match why {
            Some(why) => writeln!(out, ": {}", visible(why)),
            None => writeln!(out),
        };
    }
}
