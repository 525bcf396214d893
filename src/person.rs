//! Who decides. Every decision is kept under a name.
#![allow(unsafe_code, reason = "raw bindings to libc: this user's name")]

use anyhow::ensure;
use clap::Args;
use std::ffi::CStr;

/// The longest name, and the longest reason, in bytes.
const MOST_NAME: usize = 255;
const MOST_WHY: usize = 4096;

/// The `--person` flag.
#[derive(Args, Clone)]
pub struct PersonArgs {
    /// Who decides this, for the record; by default the name of this user on this machine.
    /// The database's own role is recorded beside it
    #[arg(long, env = "POSTONCE_PERSON", value_name = "NAME")]
    person: Option<String>,
}

impl PersonArgs {
    /// The name that is recorded.
    pub fn name(&self) -> anyhow::Result<String> {
        let name = self.person.clone().unwrap_or_else(os_user);
        let fits = !name.trim().is_empty() && name.len() <= MOST_NAME && !name.chars().any(char::is_control);
        ensure!(fits, "--person: write a name of 1 to {MOST_NAME} bytes without control characters");
        Ok(name)
    }
}

/// A reason as it is recorded, for clap.
pub fn why(text: &str) -> Result<String, String> {
    let harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    match text.trim() {
        "" => Err("say why, in a sentence: it is kept for ever".to_owned()),
        why if why.len() > MOST_WHY => Err(format!("it has {} bytes; write at most {MOST_WHY}", why.len())),
        why if !why.chars().all(harmless) => Err("it holds control characters".to_owned()),
        why => Ok(why.to_owned()),
    }
}

/// The user that this process runs as; in a container that knows no names, its number.
fn os_user() -> String {
    let mut entry = std::mem::MaybeUninit::<libc::passwd>::zeroed();
    let mut text = [0; 4096];
    let mut found = std::ptr::null_mut();
    // SAFETY: every pointer lives as long as the call, with its true length. Where `found`
    // is not null it is `entry`, filled in, and its name ends with a zero byte in `text`.
    unsafe {
        let id = libc::geteuid();
        libc::getpwuid_r(id, entry.as_mut_ptr(), text.as_mut_ptr(), text.len(), &raw mut found);
        if found.is_null() {
            return format!("uid {id}");
        }
        CStr::from_ptr((*found).pw_name).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_has_a_name() {
        let name = |person: Option<&str>| PersonArgs { person: person.map(str::to_owned) }.name();
        assert!(!name(None).unwrap().is_empty());
        assert_eq!(name(Some("Ada Lovelace")).unwrap(), "Ada Lovelace");
        for refused in ["", " ", "a\u{1b}[2J", &"a".repeat(256)] {
            assert!(name(Some(refused)).is_err(), "{refused:?}");
        }
    }

    #[test]
    fn a_reason_says_something() {
        assert_eq!(why(" sent by mistake\n").as_deref(), Ok("sent by mistake"));
        for refused in ["", "  \n", "a\0b", "\u{1b}]0;x\u{7}", &"a".repeat(4097)] {
            assert!(why(refused).is_err(), "{refused:?}");
        }
    }
}
