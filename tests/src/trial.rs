//! A test as a function, with what its processes said when it fails.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use anyhow::Result;
use libtest_mimic::{Failed, Trial};

thread_local! {
    /// What this test's processes have said. A test runs on one thread.
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Makes a test of a function, which tells how long it took. Its name carries its module:
/// `real_parts::parts::broker_round_trip` becomes `parts::broker_round_trip`.
pub fn trial(module: &str, name: &str, test: fn() -> Result<()>) -> Trial {
    let module = module.split_once("::").map_or(module, |(_, rest)| rest);
    let name = format!("{module}::{name}");
    Trial::test(name.clone(), move || {
        let began = Instant::now();
        let outcome = run(test);
        eprintln!("{:6.1} s  {name}", began.elapsed().as_secs_f64());
        outcome
    })
}

/// `trials![one, other]` makes tests of the functions `one` and `other` of this module.
#[macro_export]
macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        vec![$($crate::trial(module_path!(), stringify!($name), $name)),*]
    };
}

fn run(test: fn() -> Result<()>) -> Result<(), Failed> {
    SAID.take();
    let outcome = catch_unwind(AssertUnwindSafe(test));
    let said = SAID.take();
    let message = match outcome {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => format!("{error:?}"),
        Err(panic) => panic_text(&*panic),
    };
    Err(Failed::from(said.into_iter().fold(message, |all, one| all + "\n" + &one)))
}

/// Keeps what a process said, to be shown if the test that runs here fails.
pub(crate) fn remember(text: String) {
    SAID.with_borrow_mut(|all| all.push(text));
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("(no text)"))
}
