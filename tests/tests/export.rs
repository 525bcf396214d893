//! The ledger in the words of other programs, judged by those programs: hledger,
//! ledger-cli and beancount as the machine's packages have them.
#![allow(unsafe_code, reason = "raw bindings to libc or librdkafka, in tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce::commands::export::names;
use postonce_schema::currency;
use postonce_tests::{Flow, Ledger, Message, PostonceProcess, Trial, kafka, trials, wait_until};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tempfile::TempDir;

pub fn tests() -> Vec<Trial> {
    trials![
        hledger_reports_the_same_balances,
        ledger_reports_the_same_balances,
        beancount_reports_the_same_balances,
        csv_and_jsonl_hold_every_entry,
        an_account_comes_with_whole_transactions,
        a_part_of_the_time,
        nothing_selected_is_a_file_that_every_program_takes,
        a_reader_that_has_seen_enough,
        a_signal_leaves_no_file,
        a_damaged_ledger_is_not_exported,
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

/// (account, asset) → minor units.
type Balances = BTreeMap<(String, String), i128>;

/// A ledger of a workload, and of journals with what is hard to write: random accounts,
/// largest amounts, currencies of 0 and 3 decimals and retired ones, other assets.
fn books(label: &str) -> Result<Ledger> {
    let flow = Flow::new(&kafka(), Ledger::fresh(label)?, label, 3)?;
    flow.send_load(2_000, 7)?;
    flow.send(journals())?;
    let consumer = flow.consume(&["--kinds", "all", "--workers", "2"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let journals: i64 = flow.ledger.db.one("SELECT count(*) FROM resources WHERE kind = 'journal'")?;
    ensure!(journals == JOURNALS, "{journals} of {JOURNALS} journals were accepted");
    Ok(flow.ledger)
}

const JOURNALS: i64 = 40;

fn journals() -> Vec<Message> {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let journal = |number: i64| {
        let line = |index: usize| {
            let asset = if index < ASSETS.len() { ASSETS[index].to_owned() } else { unit(&mut random) };
            let unit = if currency::decimals(&asset).is_some() { "currency" } else { "asset" };
            let amount =
                if index.is_multiple_of(2) { 9_007_199_254_740_991 } else { random.random_range(1..100_000_i64) };
            let [debit, credit] = [path(&mut random), path(&mut random)];
            format!(r#"{{"debit":"{debit}","credit":"{credit}","amount":{amount},"{unit}":"{asset}"}}"#)
        };
        let lines: Vec<String> = (0..ASSETS.len() + 5).map(line).collect();
        // Whatever a resource may hold: quotes, tags, dates, directives.
        let resource = format!(r#"books; x:y, [2026-01-01] \"größe\" \\ %41/{number}"#);
        // To the last day of the calendar.
        let time = if number == 0 { "9999-12-31T23:59:59.999999Z" } else { "2024-02-29T23:59:59.999999+02:00" };
        let json = format!(
            r#"{{"type":"journal.posted","resource":"{resource}","updatedAt":"{time}","data":{{"author":"a","reason":"r","postings":[{}]}}}}"#,
            lines.join(",")
        );
        // Its clock is as far ahead.
        Message::new(json).key(number.to_string()).timestamp(253_402_300_799_000)
    };
    (0..JOURNALS).map(journal).collect()
}

const ASSETS: [&str; 13] = [
    "EUR",
    "JPY",
    "KWD",
    "DEM",
    "E",
    "TRUE",
    "FALSE",
    "NULL",
    "POINTS",
    "SKU-7.A_B",
    "A-",
    "ABCDEFGHIJKLMNOPQRSTUVWX",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ012345",
];

fn unit(random: &mut impl Rng) -> String {
    const BYTES: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    let length = random.random_range(0..31);
    let rest = (0..length).map(|_| char::from(BYTES[random.random_range(0..BYTES.len())]));
    // Q: no currency begins with it but QAR, and this one is longer.
    ["QX".to_owned(), rest.collect()].concat()
}

fn path(random: &mut impl Rng) -> String {
    const PLAIN: &[u8] = b"ABCXYZabcdxyz0123456789._-";
    const ROOTS: [&str; 5] = ["assets", "liabilities", "equity", "income", "expenses"];
    let mut path = ROOTS[random.random_range(0..ROOTS.len())].to_owned();
    for _ in 0..random.random_range(1..4) {
        path.push(':');
        for _ in 0..random.random_range(1..5) {
            match random.random_range(0..5) {
                0 => path.push_str(&format!("%{:02X}", random.random_range(0..256))),
                _ => path.push(char::from(PLAIN[random.random_range(0..PLAIN.len())])),
            }
        }
    }
    path
}

/// As `postonce balances` tells them, those of zero left out.
fn balances(ledger: &Ledger, args: &[&str]) -> Result<Balances> {
    let told = postonce(ledger, &[&["balances", "-o", "json"], args].concat())?;
    let rows: Vec<Value> = serde_json::from_str(&told)?;
    let text = |row: &Value, name: &str| row[name].as_str().map(str::to_owned).context("no text");
    let mut balances = Balances::new();
    for row in rows {
        let amount: i128 = text(&row, "balance")?.parse()?;
        if amount != 0 {
            balances.insert((text(&row, "account")?, text(&row, "asset")?), amount);
        }
    }
    Ok(balances)
}

fn postonce(ledger: &Ledger, args: &[&str]) -> Result<String> {
    PostonceProcess::run(args, &[("DATABASE_URL", &ledger.url)], LIMIT)
}

/// An export in a file of its own.
struct Exported {
    directory: TempDir,
}

impl Exported {
    fn new(ledger: &Ledger, format: &str, args: &[&str]) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let out = directory.path().join("export");
        let own = ["export", "--format", format, "--out", text(&out)?];
        postonce(ledger, &[&own, args].concat())?;
        Ok(Self { directory })
    }

    /// What a program says of it, `FILE` among its arguments being the file; its
    /// complaint is an error.
    fn told(&self, program: &str, args: &[&str]) -> Result<String> {
        let file = self.directory.path().join("export");
        let args: Vec<&str> =
            args.iter().map(|arg| if *arg == "FILE" { text(&file) } else { Ok(*arg) }).collect::<Result<_>>()?;
        let output = Command::new(program).args(&args).stdin(Stdio::null()).output()?;
        let (said, complained) = (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
        let start = |text: &str| text.chars().take(2_000).collect::<String>();
        ensure!(
            output.status.success() && complained.is_empty(),
            "{program}: {}\n{}\n{}",
            output.status,
            start(&complained),
            start(&said)
        );
        Ok(said)
    }

    fn content(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.directory.path().join("export"))?)
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the path is no text")
}

/// The program that judges a format, and what it takes the balances of a file to be.
struct Judge {
    format: &'static str,
    programs: &'static [&'static str],
    balances: fn(&Exported, &BTreeSet<String>) -> Result<Balances>,
}

const HLEDGER: Judge = Judge { format: "hledger", programs: &["hledger"], balances: hledger };
const LEDGER: Judge = Judge { format: "ledger", programs: &["ledger"], balances: ledger_cli };
const BEANCOUNT: Judge = Judge { format: "beancount", programs: &["bean-check", "bean-query"], balances: beancount };

impl Judge {
    /// `./setup.sh test` installs them where the package manager has them.
    fn is_here(&self) -> bool {
        let missing = self.programs.iter().find(|program| {
            !Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
        });
        if let Some(program) = missing {
            eprintln!("skipped: {program} is not installed, --format {} is not judged", self.format);
        }
        missing.is_none()
    }

    fn judge(&self, ledger: &Ledger, args: &[&str]) -> Result<Balances> {
        let exported = Exported::new(ledger, self.format, args)?;
        let assets: Vec<(String,)> = ledger.db.rows("SELECT DISTINCT asset FROM accounts")?;
        let assets = assets.into_iter().map(|(asset,)| asset).collect();
        let mut balances = (self.balances)(&exported, &assets)?;
        balances.retain(|_, amount| *amount != 0);
        Ok(balances)
    }
}

fn hledger(exported: &Exported, _: &BTreeSet<String>) -> Result<Balances> {
    exported.told("hledger", &["check", "--strict", "-f", "FILE"])?;
    let report = ["balance", "-f", "FILE", "--flat", "--no-total", "--output-format=csv", "--layout=bare"];
    let rows = csv(&exported.told("hledger", &report)?)?;
    let entry = |row: &Vec<String>| {
        let [account, asset, amount] = row.as_slice() else { anyhow::bail!("{row:?}") };
        Ok(((account.clone(), asset.clone()), minor_units(amount, asset)?))
    };
    rows.iter().skip(1).map(entry).collect()
}

fn ledger_cli(exported: &Exported, _: &BTreeSet<String>) -> Result<Balances> {
    // An account's assets in one line, with a backslash and an n between them.
    let format = "--balance-format=%(account)|%(join(amount))\n";
    // --empty: it hides an account whose balance that of its children makes up for.
    let report = ["-f", "FILE", "--pedantic", "balance", "--flat", "--empty", "--no-total", format];
    let report = exported.told("ledger", &report)?;
    let mut balances = Balances::new();
    for line in report.lines() {
        let (account, amounts) = line.split_once('|').with_context(|| line.to_owned())?;
        for amount in amounts.split("\\n").filter(|amount| *amount != "0") {
            let (number, asset) = amount.split_once(' ').with_context(|| line.to_owned())?;
            let asset = asset.trim_matches('"').to_owned();
            let units = minor_units(number, &asset)?;
            balances.insert((account.to_owned(), asset), units);
        }
    }
    Ok(balances)
}

fn beancount(exported: &Exported, assets: &BTreeSet<String>) -> Result<Balances> {
    exported.told("bean-check", &["FILE"])?;
    // str: as a number, bean-query would round it.
    let query = "SELECT account, currency, str(sum(number)) GROUP BY account, currency";
    let rows = csv(&exported.told("bean-query", &["-f", "csv", "FILE", query])?)?;
    let entry = |row: &Vec<String>| {
        let [account, asset, amount] = row.as_slice() else { anyhow::bail!("{row:?}") };
        let account = names::beancount_path(account.trim()).with_context(|| format!("whose name is {account}?"))?;
        let asset = names::beancount_asset_of(asset.trim(), assets.iter().map(String::as_str))
            .with_context(|| format!("whose name is {asset}?"))?;
        let number = amount.trim().strip_prefix("Decimal('").and_then(|rest| rest.strip_suffix("')"));
        Ok((
            (account.as_str().to_owned(), asset.to_owned()),
            minor_units(number.with_context(|| amount.clone())?, asset)?,
        ))
    };
    // Without a single posting there is not even a header.
    rows.iter().skip(1).map(entry).collect()
}

/// A decimal that must have the decimals of its asset; zero may have none.
fn minor_units(decimal: &str, asset: &str) -> Result<i128> {
    if decimal == "0" {
        return Ok(0);
    }
    let expected = usize::from(currency::decimals(asset).unwrap_or(0));
    let found = decimal.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    ensure!(found == expected, "{decimal} {asset} has {found} decimals");
    Ok(decimal.replace('.', "").parse()?)
}

/// RFC 4180, with or without CR.
fn csv(text: &str) -> Result<Vec<Vec<String>>> {
    let (mut rows, mut row, mut field) = (Vec::new(), Vec::new(), String::new());
    let (mut chars, mut quoted) = (text.chars().peekable(), false);
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.next_if_eq(&'"').is_some() => field.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\r' if !quoted => ensure!(chars.peek() == Some(&'\n'), "CR without LF"),
            '\n' if !quoted => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            other => field.push(other),
        }
    }
    ensure!(row.is_empty() && field.is_empty() && !quoted, "the last line has no end");
    Ok(rows)
}

fn same_balances(judge: &Judge, label: &str) -> Result<()> {
    if !judge.is_here() {
        return Ok(());
    }
    let ledger = books(label)?;
    let expected = balances(&ledger, &[])?;
    ensure!(expected.len() > 500, "{} balances are too few to prove much", expected.len());
    same(&judge.judge(&ledger, &[])?, &expected)
}

fn same(found: &Balances, expected: &Balances) -> Result<()> {
    let differing: Vec<_> =
        expected.keys().chain(found.keys()).filter(|key| found.get(*key) != expected.get(*key)).take(5).collect();
    ensure!(
        differing.is_empty(),
        "{:#?}",
        differing.iter().map(|key| (key, found.get(*key), expected.get(*key))).collect::<Vec<_>>()
    );
    Ok(())
}

fn hledger_reports_the_same_balances() -> Result<()> {
    same_balances(&HLEDGER, "export_hledger")
}

fn ledger_reports_the_same_balances() -> Result<()> {
    same_balances(&LEDGER, "export_ledger")
}

fn beancount_reports_the_same_balances() -> Result<()> {
    same_balances(&BEANCOUNT, "export_beancount")
}

/// The columns of an export, in the words of the view `entries`.
const ENTRIES: &str = "
    SELECT concat_ws('|', to_char(e.effective_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), e.event_id,
           e.kind || '.' || v.state, e.resource, s.topic, s.partition, split_part(e.posting_id, '/', 2),
           split_part(e.posting_id, '/', 3), e.account, e.asset, e.amount)
    FROM entries e
    JOIN streams s ON s.stream = split_part(e.posting_id, '/', 1)::bigint
    JOIN events v ON 'evt_' || encode(v.event_id, 'hex') = e.event_id";

fn csv_and_jsonl_hold_every_entry() -> Result<()> {
    let ledger = books("export_rows")?;
    let conflicts: i64 =
        ledger.db.one("SELECT count(*) FROM postings JOIN conflicts USING (stream, message_offset)")?;
    ensure!(conflicts > 0, "no conflict of this workload has moved money");
    let expected: Vec<(String,)> = ledger.db.rows(ENTRIES)?;
    let mut expected: Vec<String> = expected.into_iter().map(|(row,)| row).collect();
    expected.sort_unstable();

    let rows = csv(&Exported::new(&ledger, "csv", &[])?.content()?)?;
    let (columns, rows) = rows.split_first().context("no header")?;
    let lines = Exported::new(&ledger, "jsonl", &[])?.content()?;
    let objects: Vec<Value> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let of_object = |object: &Value| -> Vec<String> {
        columns
            .iter()
            .map(|name| object[name].as_str().map_or_else(|| object[name].to_string(), str::to_owned))
            .collect()
    };
    let from_jsonl: Vec<Vec<String>> = objects.iter().map(of_object).collect();
    assert!(from_jsonl == rows, "CSV and JSONL differ");

    let times: Vec<&String> = rows.iter().map(|row| &row[0]).collect();
    assert!(times.is_sorted(), "not in the order of their effect");
    for row in rows {
        let [.., asset, units, amount] = row.as_slice() else { anyhow::bail!("{row:?}") };
        assert_eq!(minor_units(amount, asset)?.to_string(), *units);
    }
    let mut found: Vec<String> = rows.iter().map(|row| row[..row.len() - 1].join("|")).collect();
    found.sort_unstable();
    let differing: Vec<_> = found.iter().zip(&expected).filter(|(one, other)| one != other).take(3).collect();
    ensure!(differing.is_empty() && found.len() == expected.len(), "{} {} {differing:#?}", found.len(), expected.len());
    Ok(())
}

fn an_account_comes_with_whole_transactions() -> Result<()> {
    let ledger = books("export_account")?;
    let chosen = "SELECT a.path FROM accounts a JOIN accounts b ON starts_with(b.path, a.path || '0')
                  WHERE a.path LIKE 'liabilities:merchant:m\\_%' ORDER BY 1 LIMIT 1";
    // Another account begins with the same text, and is not meant.
    ledger.db.execute(
        "INSERT INTO accounts SELECT gen_random_uuid(), min(path) || '0', 'EUR' FROM accounts
         WHERE path LIKE 'liabilities:merchant:m\\_%'",
    )?;
    let account: String = ledger.db.one(chosen)?;
    for prefix in [account.as_str(), "liabilities:merchant", "liabilities:"] {
        let below = format!("{}:", prefix.trim_end_matches(':'));
        let is_mine = |path: &str| path == prefix || path.starts_with(&below);
        let mut expected = balances(&ledger, &[])?;
        expected.retain(|(path, _), _| is_mine(path));
        ensure!(!expected.is_empty(), "{prefix} holds nothing");
        for judge in [HLEDGER, LEDGER, BEANCOUNT].into_iter().filter(Judge::is_here) {
            let mut found = judge.judge(&ledger, &["--account", prefix])?;
            let sums = found.iter().fold(BTreeMap::new(), |mut sums: BTreeMap<&str, i128>, ((_, asset), amount)| {
                *sums.entry(asset).or_default() += amount;
                sums
            });
            assert!(sums.values().all(|sum| *sum == 0), "{prefix} in {}: {sums:?}", judge.format);
            found.retain(|(path, _), _| is_mine(path));
            same(&found, &expected)?;
        }
        let lines = Exported::new(&ledger, "jsonl", &["--account", prefix])?.content()?;
        let events: BTreeSet<&str> = lines.lines().filter_map(|line| line.split('"').nth(7)).collect();
        let touching: i64 = ledger.db.one(&format!(
            "SELECT count(DISTINCT event_id) FROM entries WHERE account = '{prefix}' OR starts_with(account, '{below}')"
        ))?;
        assert_eq!(i64::try_from(events.len())?, touching, "{prefix}");
    }
    let mut nobody = PostonceProcess::start(
        &["export", "--format", "csv", "--account", "liabilities:merchan"],
        &[("DATABASE_URL", &ledger.url)],
    )?;
    assert_eq!(nobody.wait(LIMIT)?.code(), Some(1));
    assert!(nobody.stderr().contains("there is no account liabilities:merchan and none below"), "{}", nobody.stderr());
    Ok(())
}

fn a_part_of_the_time() -> Result<()> {
    let ledger = books("export_time")?;
    let (middle, before): (String, String) = ledger
        .db
        .rows(
            "SELECT to_char(t AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'),
                    to_char((t - interval '1 us') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')
             FROM (SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY effective_at) AS t FROM postings) m",
        )?
        .remove(0);
    let (all, until) = (balances(&ledger, &[])?, balances(&ledger, &["--as-of", &before])?);
    assert!(!until.is_empty() && until != all);
    for judge in [HLEDGER, LEDGER, BEANCOUNT].into_iter().filter(Judge::is_here) {
        let earlier = judge.judge(&ledger, &["--to", &middle])?;
        same(&earlier, &until)?;
        // What is not in one half is in the other.
        let mut sum = judge.judge(&ledger, &["--from", &middle])?;
        for (account, amount) in earlier {
            *sum.entry(account).or_default() += amount;
        }
        sum.retain(|_, amount| *amount != 0);
        same(&sum, &all)?;
    }
    Ok(())
}

fn nothing_selected_is_a_file_that_every_program_takes() -> Result<()> {
    let (empty, full) = (Ledger::fresh("export_empty")?, books("export_nothing")?);
    for (ledger, args) in [(&empty, &[][..]), (&full, &["--from", "2024-02-01", "--to", "2024-02-01"])] {
        for judge in [HLEDGER, LEDGER, BEANCOUNT].into_iter().filter(Judge::is_here) {
            assert_eq!(judge.judge(ledger, args)?, Balances::new(), "{}", judge.format);
        }
        assert_eq!(Exported::new(ledger, "jsonl", args)?.content()?, "");
        assert_eq!(csv(&Exported::new(ledger, "csv", args)?.content()?)?.len(), 1);
    }
    Ok(())
}

fn a_reader_that_has_seen_enough() -> Result<()> {
    let ledger = books("export_pipe")?;
    for format in ["hledger", "jsonl"] {
        let mut export = PostonceProcess::command(&["export", "--format", format], &[("DATABASE_URL", &ledger.url)])?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdout = export.stdout.take().context("no stdout")?;
        stdout.read_exact(&mut [0; 10])?;
        drop(stdout);
        let output = export.wait_with_output()?;
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && complained.is_empty(), "{format}: {} {complained}", output.status);
    }
    Ok(())
}

fn a_signal_leaves_no_file() -> Result<()> {
    let ledger = books("export_signal")?;
    let directory = tempfile::tempdir()?;
    let out = directory.path().join("ledger.journal");
    std::fs::write(&out, "as before")?;
    let files = || Ok::<_, anyhow::Error>(std::fs::read_dir(directory.path())?.count());
    // The accounts can be read, the postings cannot.
    ledger.db.execute("BEGIN; LOCK TABLE resources IN ACCESS EXCLUSIVE MODE")?;
    for (signal, code) in [(libc::SIGTERM, 143), (libc::SIGINT, 130)] {
        let args = ["export", "--format", "hledger", "--out", text(&out)?];
        let mut export = PostonceProcess::start(&args, &[("DATABASE_URL", &ledger.url)])?;
        wait_until(LIMIT, "the export to wait for the postings", || {
            let waiting: i64 = ledger
                .db
                .one("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'resources'::regclass")?;
            Ok((waiting > 0).then_some(()))
        })?;
        assert_eq!(files()?, 2, "it is written under another name");
        // SAFETY: a signal to a child that nobody has waited for.
        unsafe { libc::kill(libc::pid_t::try_from(export.pid())?, signal) };
        assert_eq!(export.wait(LIMIT)?.code(), Some(code), "{}", export.stderr());
        assert_eq!(files()?, 1, "nothing is left behind");
        wait_until(LIMIT, "its session to end", || {
            let waiting: i64 = ledger.db.one("SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE NOT granted AND relation = 'resources'::regclass")?;
            Ok((waiting == 0).then_some(()))
        })?;
    }
    assert_eq!(std::fs::read_to_string(&out)?, "as before");
    ledger.db.execute("ROLLBACK")?;
    postonce(&ledger, &["export", "--format", "hledger", "--out", text(&out)?])?;
    assert!(std::fs::read_to_string(&out)?.starts_with("; "));
    assert_eq!(files()?, 1);
    Ok(())
}

fn a_damaged_ledger_is_not_exported() -> Result<()> {
    let ledger = books("export_damaged")?;
    let offset: i64 = ledger.db.one("SELECT message_offset FROM events WHERE outcome = 'P' LIMIT 1")?;
    ledger.db.execute(&format!(
        "ALTER TABLE events DISABLE TRIGGER events_append_only;
         DELETE FROM events WHERE outcome = 'P' AND message_offset = {offset}"
    ))?;
    let directory = tempfile::tempdir()?;
    let out = directory.path().join("ledger.beancount");
    let args = ["export", "--format", "beancount", "--out", text(&out)?];
    let mut export = PostonceProcess::start(&args, &[("DATABASE_URL", &ledger.url)])?;
    assert_eq!(export.wait(LIMIT)?.code(), Some(1));
    assert!(export.stderr().contains(&format!("of offset {offset} in stream")), "{}", export.stderr());
    assert!(export.stderr().contains("has no event"), "{}", export.stderr());
    assert_eq!(std::fs::read_dir(directory.path())?.count(), 0);
    Ok(())
}
