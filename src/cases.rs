//! What the commands that show and decide cases have in common.

use crate::table::{or_dash, visible};
use postonce_consumer::cases::actions::Action;
use std::fmt::Write;

/// How many rows are decided in one transaction: locks are short, and a signal is heard.
pub const CHUNK: usize = 500;

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
