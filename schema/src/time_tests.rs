use super::*;
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Refused {
    updated_at: String,
    why: String,
}

#[test]
fn refused_times_are_refused() {
    let refused: Vec<Refused> = serde_json::from_str(include_str!("../testdata/refused_times.json")).expect("JSON");
    assert!(refused.len() > 20);
    for Refused { updated_at: text, why } in refused {
        assert!(Timestamp::parse(&text).is_err(), "{text} was accepted although: {why}");
    }
}

#[test]
fn fractions_are_cut_and_never_rounded() {
    for digits in 0..=12 {
        let nines = "9".repeat(digits);
        let text =
            if digits == 0 { "2026-01-02T03:04:05Z".to_owned() } else { format!("2026-01-02T03:04:05.{nines}Z") };
        let kept = format!("{:0<6}", &nines[..digits.min(6)]);
        let time = Timestamp::parse(&text).expect("a time");
        assert_eq!(time.to_string(), format!("2026-01-02T03:04:05.{kept}Z"));
    }
}

#[test]
fn the_edges_of_the_years() {
    for (text, normalised) in [
        ("1970-01-01T00:59:59+00:59", "1970-01-01T00:00:59.000000Z"),
        ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999Z"),
        ("0000-12-31T23:59:59Z", ""),
        ("1970-01-01T00:00:00+00:01", ""),
        ("9999-12-31T23:59:00-00:01", ""),
    ] {
        let read = Timestamp::parse(text).map(|time| time.to_string()).unwrap_or_default();
        assert_eq!(read, normalised, "{text}");
    }
}

proptest! {
    /// jiff is the second opinion on the calendar.
    #[test]
    fn agrees_with_jiff(micros in 0..=LAST, offset in -1439i64..=1439) {
        let ours = Timestamp::from_micros(micros).expect("in range");
        let theirs = jiff::Timestamp::from_microsecond(micros).expect("in range");
        prop_assert_eq!(ours.to_string(), format!("{theirs:.6}"));
        prop_assert_eq!(Timestamp::parse(&ours.to_string()), Ok(ours));
        // The same instant, written elsewhere on the globe.
        let local = micros + offset * 60_000_000;
        if let Some(local) = Timestamp::from_micros(local) {
            let (sign, minutes) = if offset < 0 { ('-', -offset) } else { ('+', offset) };
            let text = local.to_string().replace('Z', &format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60));
            prop_assert_eq!(Timestamp::parse(&text), Ok(ours));
        }
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,40}") {
        let _ = Timestamp::parse(&text);
    }

    #[test]
    fn no_damaged_time_panics(at in 0usize..30, with in "\\PC") {
        let mut text = "2026-01-02T03:04:05.123+02:00".to_owned();
        if at < text.len() {
            text.replace_range(at..=at, &with);
        }
        let _ = Timestamp::parse(&text);
    }
}
