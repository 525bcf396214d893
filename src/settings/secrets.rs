//! Secrets in files of their own: `DATABASE_URL_FILE` names the file that holds what
//! `DATABASE_URL` would. Container platforms mount secrets so, and a variable is seen by
//! whoever may look at the process.

use super::flags;
use anyhow::{Context, ensure};
use clap::Arg;
use std::path::PathBuf;

/// The variable that names the file of a secret; none where the flag is no secret.
pub fn variable(arg: &Arg) -> Option<String> {
    flags::variable(arg).filter(|_| arg.is_hide_env_values_set()).map(|name| format!("{name}_FILE"))
}

/// What the secret's file says, where there is one.
pub fn read(arg: &Arg) -> anyhow::Result<Option<Vec<String>>> {
    let Some((variable, path)) = set(arg) else { return Ok(None) };
    let place = || format!("{variable}={}", path.display());
    let text = std::fs::read_to_string(&path).with_context(place)?;
    let secret = text.strip_suffix('\n').unwrap_or(&text);
    let secret = secret.strip_suffix('\r').unwrap_or(secret);
    ensure!(!secret.is_empty(), "{}: the file is empty", place());
    flags::accepts(arg, secret).map_err(|why| anyhow::anyhow!("{}: {why}", place()))?;
    Ok(Some(vec![secret.to_owned()]))
}

/// Two places for one secret: nobody can tell which of them is out of date.
pub fn refuse_both(arg: &Arg) -> anyhow::Result<()> {
    let Some((variable, _)) = set(arg) else { return Ok(()) };
    let name = flags::variable(arg).unwrap_or_default();
    ensure!(std::env::var_os(&name).is_none(), "{name} and {variable} are both set; unset one of them");
    Ok(())
}

fn set(arg: &Arg) -> Option<(String, PathBuf)> {
    let variable = variable(arg)?;
    let path = std::env::var_os(&variable)?;
    Some((variable, PathBuf::from(path)))
}
