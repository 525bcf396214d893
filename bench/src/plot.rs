//! The plot of the growth runs, as SVG: the rate by the events in the ledger.
//!
//! Written by hand, for it is a few lines and a frame. No background: every colour is one
//! that can be read on white and on black.

use crate::growth::{IN_ORDER, LATE, THREE_EACH};
use crate::sample::Samples;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 456.0;
/// Of the frame, within the picture.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 840.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 380.0;
/// How many lines a grid has at most, in each direction.
const GRID: f64 = 8.0;
const GREY: &str = "#7f8b98";

/// A line, by the contestant that it belongs to.
struct Line {
    contestant: &'static str,
    words: &'static str,
    colour: &'static str,
}

const LINES: [Line; 3] = [
    Line { contestant: IN_ORDER, words: "in order", colour: "#2f81f7" },
    Line { contestant: LATE, words: "late events, spread over two years", colour: "#d9822b" },
    Line { contestant: THREE_EACH, words: "three events for each resource", colour: "#2da266" },
];

/// Events in the ledger, and the rate there.
type Points = Vec<(u64, f64)>;

/// None where growth was not measured.
pub fn of_growth(samples: &Samples, machine: &str) -> Option<String> {
    let lines = LINES.iter().filter_map(|line| {
        let run = samples.runs(line.contestant).first()?;
        // The first slice holds the start of the program.
        let points: Points = run.slices.iter().skip(1).copied().collect();
        (points.len() > 1).then_some((line, points))
    });
    let lines: Vec<(&Line, Points)> = lines.collect();
    (!lines.is_empty()).then(|| draw(&lines, machine))
}

fn draw(lines: &[(&Line, Points)], machine: &str) -> String {
    let points = || lines.iter().flat_map(|(_, points)| points.iter());
    let across = Axis::to(points().map(|(events, _)| *events as f64).fold(0.0, f64::max));
    let up = Axis::to(points().map(|(_, rate)| *rate).fold(0.0, f64::max));
    let x = |events: f64| LEFT + (RIGHT - LEFT) * events / across.end;
    let y = |rate: f64| BOTTOM - (BOTTOM - TOP) * rate / up.end;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"{GREY}\" role=\"img\">\n\
         <title>Postonce: events in a second by the events in the ledger</title>\n"
    );
    // Writing to a String does not fail.
    let _ =
        writeln!(svg, "<text x=\"{LEFT}\" y=\"26\" font-size=\"17\">Growth: the rate while the ledger fills</text>");
    for (number, (line, _)) in lines.iter().enumerate() {
        let left = LEFT + [0.0, 110.0, 430.0].get(number).copied().unwrap_or_default();
        let Line { words, colour, .. } = line;
        let _ = writeln!(
            svg,
            "<path d=\"M{left} 52h22\" stroke=\"{colour}\" stroke-width=\"3\"/><text x=\"{}\" y=\"56\">{words}</text>",
            left + 28.0
        );
    }
    for value in up.marks() {
        let (at, label) = (y(value), number(value / 1e3));
        let _ = writeln!(svg, "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"{GREY}\" stroke-opacity=\".3\"/>");
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 8.0, at + 4.5);
    }
    for value in across.marks() {
        let (at, label) = (x(value), number(value / 1e6));
        let _ = writeln!(svg, "<path d=\"M{at:.1} {BOTTOM}v5\" stroke=\"{GREY}\"/>");
        let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", BOTTOM + 20.0);
    }
    let middle = f64::midpoint(TOP, BOTTOM);
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">million events in the ledger</text>\n\
         <text transform=\"translate(18 {middle}) rotate(-90)\" text-anchor=\"middle\">thousand events/s</text>\n\
         <text x=\"{RIGHT}\" y=\"{}\" text-anchor=\"end\" font-size=\"11\">{}</text>",
        f64::midpoint(LEFT, RIGHT),
        BOTTOM + 40.0,
        HEIGHT - 4.0,
        escaped(machine)
    );
    for (line, points) in lines {
        let path: Vec<String> =
            points.iter().map(|(events, rate)| format!("{:.1},{:.1}", x(*events as f64), y(*rate))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>",
            path.join(" "),
            line.colour
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// From nought to a round end, in round steps.
#[derive(Debug, PartialEq)]
struct Axis {
    step: f64,
    end: f64,
}

impl Axis {
    fn to(most: f64) -> Self {
        let most = most.max(1.0);
        let rough = most / GRID;
        let power = 10_f64.powf(rough.log10().floor());
        let round = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough).unwrap_or(10.0);
        let step = round * power;
        Self { step, end: (most / step).ceil() * step }
    }

    fn marks(&self) -> impl Iterator<Item = f64> {
        (0..=(self.end / self.step).round() as u32).map(|mark| f64::from(mark) * self.step)
    }
}

/// `20`, `2.5`, `0.005`.
fn number(value: f64) -> String {
    // The steps are of one digit, so three behind the point are the most that is needed.
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Run;

    #[test]
    fn axes_end_at_a_round_number_above_the_greatest() {
        assert_eq!(Axis::to(20e6), Axis { step: 5e6, end: 20e6 });
        assert_eq!(Axis::to(118_000.0), Axis { step: 20_000.0, end: 120_000.0 });
        assert_eq!(Axis::to(120_001.0), Axis { step: 20_000.0, end: 140_000.0 });
        assert_eq!(Axis::to(0.0).marks().count(), 6);
        assert_eq!([20.0, 2.5, 0.005, 0.0].map(number), ["20", "2.5", "0.005", "0"]);
    }

    #[test]
    fn each_run_is_a_line_without_its_first_slice() {
        let mut samples = Samples::default();
        assert_eq!(of_growth(&samples, ""), None);
        for name in [IN_ORDER, THREE_EACH] {
            let slices = vec![(500_000, 10_000.0), (1_000_000, 100_000.0), (2_000_000, 50_000.0)];
            samples.add(name, Run { slices, ..Run::default() });
        }
        let svg = of_growth(&samples, "a <b> & c").unwrap();
        assert_eq!(svg.matches("<polyline points=\"455.0,84.0 840.0,232.0\"").count(), 2, "{svg}");
        assert!(svg.contains("a &lt;b&gt; &amp; c") && !svg.contains("late events"));
    }
}
