use super::flags::{Flag, below};
use super::*;
use crate::cli::Cli;
use clap::{CommandFactory, FromArgMatches};
use std::ffi::OsString;

fn parsed(text: &str) -> Settings {
    Settings::parse(Path::new("postonce.toml"), text, &Cli::command())
}

fn problems(text: &str) -> Vec<String> {
    parsed(text).problems.iter().map(ToString::to_string).collect()
}

/// The values of a flag as a command gets them, with this file and these arguments.
fn values(file: &str, args: &[&str], flag: &str) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("postonce.toml");
    std::fs::write(&path, file).unwrap();
    let mut line: Vec<OsString> = vec!["postonce".into(), "--config".into(), path.into()];
    line.extend(args.iter().map(OsString::from));
    // Whatever this shell has set plays no part.
    let command = command_line(without_environment(Cli::command()), &line).unwrap();
    let mut matches = command.get_matches_from(&line);
    Cli::from_arg_matches(&matches).map(drop).unwrap();
    while let Some((_, inner)) = matches.remove_subcommand() {
        matches = inner;
    }
    let raw = matches.get_raw(flag).unwrap();
    raw.map(|value| value.to_string_lossy().into_owned()).collect()
}

fn without_environment(command: Command) -> Command {
    // Variables that nobody sets, for a flag without one is no setting.
    let command = command.mut_args(|arg| match arg.get_env() {
        Some(name) if arg.get_id() != "config" => {
            let name = format!("{}_IN_NO_ENVIRONMENT", name.to_string_lossy());
            arg.env(name)
        }
        _ => arg,
    });
    command.mut_subcommands(without_environment)
}

#[test]
fn the_nearest_section_wins_and_a_flag_wins_over_it() {
    let file = "database-url = 'postgres://all'\n[migrate]\ndatabase-url = 'postgres://owner'";
    assert_eq!(values(file, &["migrate"], "database_url"), ["postgres://owner"]);
    assert_eq!(values(file, &["balances"], "database_url"), ["postgres://all"]);
    assert_eq!(values(file, &["migrate", "--database-url", "postgres://mine"], "database_url"), ["postgres://mine"]);
    let of_family = "[quarantine]\nlimit = 7\n[quarantine.list]\nlimit = 9\ndatabase-url = 'postgres://x'";
    assert_eq!(values(of_family, &["quarantine", "list"], "limit"), ["9"]);
}

#[test]
fn consume_takes_all_that_it_needs_from_the_file() {
    let file = "brokers = 'kafka:9092'\ndatabase-url = 'postgres://x'\n[consume]\nworkers = 0x10\nlisten = '0.0.0.0:1'
property = ['security.protocol=SASL_SSL', 'sasl.username=a,b']";
    for (flag, expected) in [
        ("brokers", &["kafka:9092"][..]),
        ("workers", &["16"]),
        ("listen", &["0.0.0.0:1"]),
        ("properties", &["security.protocol=SASL_SSL", "sasl.username=a,b"]),
        ("group", &["postonce"]),
    ] {
        assert_eq!(values(file, &["consume"], flag), expected, "{flag}");
    }
    assert_eq!(values(file, &["consume", "-X", "a=b"], "properties"), ["a=b"]);
}

#[test]
fn config_check_sees_what_consume_would() {
    let file = "brokers = 'all:1'\n[consume]\nbrokers = 'mine:2'";
    assert_eq!(values(file, &["config", "check"], "brokers"), ["mine:2"]);
}

#[test]
fn what_a_person_says_takes_the_place_of_what_it_excludes() {
    let file = "brokers = 'kafka:9092'\n[generate]\nsend = true";
    assert_eq!(values(file, &["generate"], "send"), ["true"]);
    assert_eq!(values(file, &["generate", "--out", "file"], "send"), ["false"]);
    let found = problems("[generate]\nout = 'file'\nsend = true");
    assert_eq!(found, ["postonce.toml:2: out and send (line 3) exclude each other"]);
    assert!(problems("[generate]\nout = 'file'\nsend = false").is_empty());
}

#[test]
fn names_that_nobody_knows_are_told_with_the_nearest() {
    let cases = [
        ("\n[consume]\nwrokers = 2", "3: [consume] wrokers: there is no such setting; did you mean workers?"),
        ("broker = 'x'", "1: broker: there is no such setting; did you mean brokers?"),
        ("database_url = 'x'", "1: database_url: there is no such setting; did you mean database-url?"),
        ("[consmue]\nworkers = 2", "1: [consmue]: there is no such command; did you mean [consume]?"),
        ("[quarantine.lst]", "1: [quarantine.lst]: there is no such command; did you mean [quarantine.list]?"),
        (
            "[consume]\nrate = 2",
            "2: [consume] rate: `postonce consume` has no such setting; what all commands share stands before the first \
             section",
        ),
        ("config = 'x'", "1: config: there is no such setting; `postonce config init` prints all"),
    ];
    for (file, expected) in cases {
        assert_eq!(problems(file), [format!("postonce.toml:{expected}")]);
    }
}

#[test]
fn all_that_is_wrong_is_told_at_once_in_the_order_of_its_lines() {
    let found = problems("x1y2 = 1\n[consume]\nworkers = 0\nbatch = 'many'\ngroup-protocol = 'new'\nlisten = true");
    let expected = [
        "postonce.toml:1: x1y2: there is no such setting; `postonce config init` prints all",
        "postonce.toml:3: [consume] workers = 0: 0 is not in 1..=256",
        "postonce.toml:4: [consume] batch = many: invalid digit found in string",
        "postonce.toml:5: [consume] group-protocol = new: not one of classic, consumer",
        "postonce.toml:6: [consume] listen: takes a value, not true or false",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_value_is_judged_by_every_command_that_it_is_for() {
    let found = problems("from = '0:12'");
    assert!(found[0].starts_with("postonce.toml:1: from = 0:12: "), "{found:?}");
    assert!(found[0].contains("(`postonce statement`)"), "{found:?}");
    assert!(problems("[statement]\nfrom = 2026-01-01T00:00:00Z\n[replay]\nfrom = ['0:12', '1:7']").is_empty());
    // Three commands have an --out, each with its own variable.
    let found = problems("out = 'x'");
    assert!(found[0].contains("out is another setting in each of [") && found[0].contains("[checkpoint]"), "{found:?}");
}

#[test]
fn a_password_is_in_no_complaint() {
    for file in [
        "database-url = postgres://u:hunter2@h/d",
        "database-url = 'postgres://u:hunter2@h/d",
        "database-url = ['postgres://u:hunter2@h/d']",
        "property = ['hunter2']",
        "property = 'sasl.password=hunter2'\nproperty = 'sasl.password=hunter2'",
    ] {
        let found = problems(file);
        assert!(!found.is_empty() && !found.concat().contains("hunter2"), "{file}: {found:?}");
    }
    let file = "database-url = 'postgres://u:hunter2@h/d'";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("postonce.toml");
    std::fs::write(&path, file).unwrap();
    let line: Vec<OsString> = vec!["postonce".into(), "--config".into(), path.into(), "migrate".into()];
    let mut command = command_line(Cli::command(), &line).unwrap();
    let help = command.find_subcommand_mut("migrate").unwrap().render_long_help().to_string();
    assert!(help.contains("--database-url") && !help.contains("hunter2"), "{help}");
}

#[test]
fn every_setting_of_every_command_is_in_the_template() {
    let cli = Cli::command();
    let text = template::text(&cli);
    for flag in below(&cli, &[]) {
        let above = text.split("\n[").next().unwrap_or_default();
        let section = format!("\n[{}]\n", flag.path.join("."));
        let own = text.split_once(&section).and_then(|(_, after)| after.split("\n[").next()).unwrap_or_default();
        let line = format!("\n#{} = ", flag.name());
        let known = |part: &str| part.contains(&line) && part.contains(&flag.variable());
        assert!(known(above) || known(own), "{:?} --{}", flag.path, flag.name());
    }
}

#[test]
fn the_template_says_the_defaults_and_is_right() {
    let cli = Cli::command();
    let text = template::text(&cli);
    assert!(parsed(&text).is_empty(), "every line of it is commented out");
    assert_eq!(problems(&text), Vec::<String>::new());
    // With every default set: settings without one hold no value but the name of one.
    let mut reason = String::new();
    let mut set = String::new();
    for line in text.lines() {
        match line.strip_prefix('#') {
            Some(words) if words.is_empty() || words.starts_with(' ') => reason.push_str(words),
            Some(setting) => {
                if !reason.contains("no default") {
                    set.push_str(setting);
                }
                reason.clear();
            }
            None => set.push_str(line),
        }
        set.push('\n');
    }
    let settings = parsed(&set);
    assert_eq!(settings.problems, []);
    assert!(settings.len() > 50, "{}", settings.len());
    for Flag { path, arg, .. } in below(&cli, &[]) {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let Some(default) = arg.get_default_values().first() else { continue };
        let entry = settings.entry(&path, arg).unwrap_or_else(|| panic!("{path:?} {}", arg.get_id()));
        assert_eq!(entry.values, [default.to_string_lossy()], "{path:?} {}", arg.get_id());
    }
}

/// A value of the file is a default to the parser, and so "absent" to what requires it.
#[test]
fn no_setting_requires_another_by_the_parser() {
    for Flag { path, command, arg } in below(&Cli::command(), &[]) {
        let others: Vec<clap::Id> = command.get_arguments().map(|other| other.get_id().clone()).collect();
        let lenient = others.into_iter().fold(command.clone(), |command, id| {
            command.mut_arg(id, |other| other.required(false).env(clap::builder::Resettable::Reset))
        });
        let value = arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
        let option = match arg.get_action().takes_values() {
            true => format!("--{}={}", arg.get_long().unwrap(), value.unwrap_or("1".to_owned())),
            false => format!("--{}", arg.get_long().unwrap()),
        };
        let lenient = lenient.subcommand_required(false).no_binary_name(true);
        let lacks = |args: &[String]| {
            let said = lenient.clone().try_get_matches_from(args);
            said.is_err_and(|error| error.kind() == clap::error::ErrorKind::MissingRequiredArgument)
        };
        // A command may ask for a name anyway, whatever stands in the file.
        assert!(lacks(&[]) || !lacks(&[option]), "{path:?} {}", arg.get_id());
    }
}
