//! What Kafka's log holds beside messages, and how it holds them.

use std::time::Duration;

use anyhow::Result;
use postonce_tests::{
    Flow, Ledger, Message, Sender, Transaction, Trial, end_offsets, kafka, payments, trials, wait_until,
};

pub fn tests() -> Vec<Trial> {
    trials![
        an_aborted_transaction_moves_no_money,
        markers_at_the_end_leave_no_lag,
        a_log_of_nothing_but_markers_leaves_no_lag,
        an_open_transaction_is_waited_for,
        topics_in_every_codec_are_read,
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

/// Every offset is accounted for: a hole of up to eight byte by byte, a longer one as
/// a run.
fn an_aborted_transaction_moves_no_money() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("aborted")?, "aborted", 1)?;
    let mut good = payments("good", 5).into_iter();
    let mut bad = payments("bad", 100).into_iter();
    let bootstrap = kafka.bootstrap();
    // 0
    flow.send(good.next())?;
    // 1 to 3, and the marker at 4
    transaction(&bootstrap, &flow.topic, bad.by_ref().take(3), false)?;
    // 5, 6, and the marker at 7
    transaction(&bootstrap, &flow.topic, good.by_ref().take(2), true)?;
    // 8 to 19, and the marker at 20: more than can be told one by one
    transaction(&bootstrap, &flow.topic, bad.by_ref().take(12), false)?;
    // 21, and the marker at 22
    transaction(&bootstrap, &flow.topic, good.by_ref().take(1), true)?;
    // 23
    flow.send(good.next())?;
    assert_eq!(end_offsets(&bootstrap, &flow.topic)?, [24]);
    let consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_done(LIMIT)?;
    let lag = || consumer.metric("postonce_lag_messages", &[]);
    wait_until(LIMIT, "the end of the lag", || Ok((lag()? == 0.0).then_some(())))?;
    consumer.finish()?;
    flow.check_whole()?;
    assert_eq!(flow.ledger.balance("assets:psp:stripe", "EUR")?, 500);
    let paths: String =
        flow.ledger.db.one("SELECT string_agg(path, ' ' ORDER BY path COLLATE \"C\") FROM resources")?;
    assert_eq!(paths, [0, 1, 2, 3, 4].map(|n| format!("stripe/good/pi_{n}")).join(" "));
    // The marker at 7 and the hole behind it are one hole of 14.
    let held: Vec<u8> = flow.ledger.db.one("SELECT string_agg(outcomes, '' ORDER BY seq) FROM batches")?;
    let expected = [b"P....PPH".as_slice(), &14_i64.to_be_bytes(), b"P.P"].concat();
    assert_eq!(held, expected, "{}", String::from_utf8_lossy(&held));
    Ok(())
}

fn transaction(bootstrap: &str, topic: &str, messages: impl IntoIterator<Item = Message>, commit: bool) -> Result<()> {
    let transaction = Transaction::begin(bootstrap)?;
    transaction.send(topic, messages)?;
    if commit { transaction.commit() } else { transaction.abort() }
}

/// Behind the last message stand only markers and what was aborted: the ledger's
/// offset passes them by itself, also those that come while nobody sends anything.
fn markers_at_the_end_leave_no_lag() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("markers")?, "markers", 2)?;
    let on = |partition: i32, message: Message| message.partition(partition);
    let mut payments = payments("markers", 40).into_iter();
    let consumer = flow.consume(&["--workers", "1"])?;
    transaction(&kafka.bootstrap(), &flow.topic, payments.by_ref().take(3).map(|m| on(0, m)), true)?;
    transaction(&kafka.bootstrap(), &flow.topic, payments.by_ref().take(3).map(|m| on(1, m)), false)?;
    flow.wait_done(LIMIT)?;
    for _ in 0..2 {
        // Nothing but holes, while everything before is read already.
        transaction(&kafka.bootstrap(), &flow.topic, payments.by_ref().take(2).map(|m| on(0, m)), false)?;
        flow.wait_done(LIMIT)?;
    }
    assert_eq!(end_offsets(&kafka.bootstrap(), &flow.topic)?, [10, 4]);
    consumer.finish()?;
    flow.check()?;
    assert_eq!(flow.ledger.balance("assets:psp:stripe", "EUR")?, 300);
    let positions: Vec<(i32, i64)> =
        flow.ledger.db.rows("SELECT partition, next_offset FROM stream_positions ORDER BY partition")?;
    assert_eq!(positions, [(0, 10), (1, 4)]);
    // The next life begins behind the holes, and a message there is read.
    flow.send(payments.by_ref().take(2).enumerate().map(|(n, message)| on(n as i32, message)))?;
    let consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check_whole()?;
    assert_eq!(flow.ledger.balance("assets:psp:stripe", "EUR")?, 500);
    Ok(())
}

fn a_log_of_nothing_but_markers_leaves_no_lag() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("nothing")?, "nothing", 1)?;
    transaction(&kafka.bootstrap(), &flow.topic, payments("nothing", 20), false)?;
    let consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check()?;
    let outcomes: Vec<u8> = flow.ledger.db.one("SELECT string_agg(outcomes, '' ORDER BY seq) FROM batches")?;
    assert_eq!(outcomes, [b"H".as_slice(), &21_i64.to_be_bytes()].concat());
    Ok(())
}

/// What stands behind an open transaction may not be read before it ends.
fn an_open_transaction_is_waited_for() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("open")?, "open", 2)?;
    let bootstrap = kafka.bootstrap();
    let mut payments = payments("open", 10).into_iter();
    let mut send = |partition: i32| flow.send(payments.next().map(|message| message.partition(partition)));
    send(0)?;
    let open = Transaction::begin(&bootstrap)?;
    open.send(&flow.topic, [Message::new("not yet an event").partition(0)])?;
    send(0)?;
    let consumer = flow.consume(&["--workers", "1"])?;
    // The other partition goes on meanwhile.
    send(1)?;
    flow.wait_offsets(2, LIMIT)?;
    send(1)?;
    flow.wait_offsets(3, LIMIT)?;
    let next: i64 = flow.ledger.db.one("SELECT next_offset FROM streams WHERE partition = 0")?;
    assert_eq!(next, 1, "it has read past an open transaction");
    open.commit()?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check()?;
    assert_eq!(flow.ledger.balance("assets:psp:stripe", "EUR")?, 400);
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM quarantine")?, 1);
    Ok(())
}

fn topics_in_every_codec_are_read() -> Result<()> {
    const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("codec")?, "codec", CODECS.len().try_into()?)?;
    for (partition, codec) in (0..).zip(CODECS) {
        let messages = payments(codec, 200).into_iter().map(|message| message.partition(partition));
        Sender::new(&kafka.bootstrap(), codec)?.send(&flow.topic, messages)?;
    }
    let consumer = flow.consume(&["--workers", "2", "--batch", "150"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check_whole()?;
    for codec in CODECS {
        let held: String = flow.ledger.db.one(&format!(
            "SELECT sum(amount)::text FROM entries WHERE account = 'assets:psp:stripe' AND resource LIKE 'stripe/{codec}/%'"
        ))?;
        assert_eq!(held, "20000", "{codec}");
    }
    Ok(())
}
