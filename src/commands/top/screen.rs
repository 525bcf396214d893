//! What the figures look like on a terminal.

use super::figures::{Condition, Figures, Partition, Quantiles};
use super::refused::Refusals;
use crate::table::visible;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};
use std::collections::VecDeque;

/// A rate for each look, newest last.
pub type Rates = VecDeque<u64>;

/// All that is drawn.
pub struct Screen<'a> {
    pub figures: &'a Figures,
    pub rates: &'a Rates,
    pub refusals: &'a Refusals,
}

pub fn draw(frame: &mut Frame<'_>, screen: &Screen<'_>) {
    let consumers = u16::try_from(screen.figures.instances.len()).unwrap_or(u16::MAX).min(6);
    let rows = [
        Constraint::Length(consumers.saturating_add(2)),
        Constraint::Length(9),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [head, middle, partitions, refused, foot] = Layout::vertical(rows).areas(frame.area());
    let columns = [Constraint::Length(38), Constraint::Fill(1), Constraint::Length(30)];
    let [outcomes, rates, times] = Layout::horizontal(columns).areas(middle);
    draw_consumers(frame, head, &screen.figures.instances);
    draw_outcomes(frame, outcomes, screen.figures);
    draw_rates(frame, rates, screen);
    draw_times(frame, times, screen.figures);
    draw_partitions(frame, partitions, screen.figures);
    draw_refused(frame, refused, screen);
    frame.render_widget("q quits; rates and times are those of the last 10 s".dark_gray(), foot);
}

fn draw_consumers(frame: &mut Frame<'_>, area: Rect, instances: &[Condition]) {
    let line = |one: &Condition| match &one.problem {
        None => Line::from(vec![
            "● ".green(),
            Span::raw(visible(&one.name)),
            Span::raw(format!("  {:.0} workers ready", one.workers_ready)),
        ]),
        Some(problem) => {
            Line::from(vec!["● ".red(), Span::raw(visible(&one.name)), format!("  {}", visible(problem)).red()])
        }
    };
    let lines: Vec<Line<'_>> = instances.iter().map(line).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" postonce consume ")), area);
}

fn draw_outcomes(frame: &mut Frame<'_>, area: Rect, figures: &Figures) {
    let rows = figures.outcomes.iter().map(|outcome| {
        let bad = matches!(outcome.outcome, "conflict" | "rejected") && outcome.per_second > 0.0;
        let style = if bad { Style::new().fg(Color::Yellow) } else { Style::new() };
        Row::new([outcome.outcome.into(), right(whole(outcome.per_second)), right(whole(outcome.total))]).style(style)
    });
    let widths = [Constraint::Fill(1), Constraint::Length(11), Constraint::Length(13)];
    let table = Table::new(rows, widths)
        .header(Row::new(["OUTCOME".into(), right("EACH SECOND"), right("SINCE START")]).bold())
        .block(Block::bordered().title(" what became of the messages "));
    frame.render_widget(table, area);
}

fn draw_rates(frame: &mut Frame<'_>, area: Rect, screen: &Screen<'_>) {
    let title = format!(" {} messages/s ", whole(screen.figures.messages_per_second));
    let block = Block::bordered().title(title.bold());
    let width = usize::from(block.inner(area).width);
    let newest: Vec<u64> = screen.rates.iter().rev().take(width).rev().copied().collect();
    frame.render_widget(Sparkline::default().data(&newest).style(Color::Green).block(block), area);
}

fn draw_times(frame: &mut Frame<'_>, area: Rect, figures: &Figures) {
    let mut lines =
        vec![times("end to end", figures.end_to_end_seconds), times("transaction", figures.transaction_seconds)];
    lines.extend(
        figures
            .steps
            .iter()
            .take(5)
            .map(|(step, part)| Line::raw(format!("  {:<15}{:>6.0} %", visible(step), part * 100.0))),
    );
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" p50, p99; its steps ")), area);
}

fn draw_partitions(frame: &mut Frame<'_>, area: Rect, figures: &Figures) {
    let mut slowest: Vec<&Partition> = figures.partitions.iter().collect();
    slowest.sort_by(|a, b| b.lag_messages.total_cmp(&a.lag_messages));
    let rows = slowest.into_iter().map(|one| {
        let oldest = one.oldest_unposted_seconds.map_or_else(|| "-".to_owned(), |age| format!("{age:.0} s"));
        let name = format!("{}/{}", visible(&one.topic), one.partition);
        Row::new([name.into(), right(whole(one.lag_messages)), right(oldest), visible(&one.instance).into()])
    });
    let widths = [Constraint::Fill(1), Constraint::Length(11), Constraint::Length(17), Constraint::Fill(1)];
    let table = Table::new(rows, widths)
        .column_spacing(2)
        .header(Row::new(["PARTITION".into(), right("LAG"), right("OLDEST UNPOSTED"), "CONSUMER".into()]).bold())
        .block(Block::bordered().title(format!(
            " lag: {} messages in {} partitions, the longest first ",
            whole(figures.lag_messages),
            figures.partitions.len()
        )));
    frame.render_widget(table, area);
}

fn draw_refused(frame: &mut Frame<'_>, area: Rect, screen: &Screen<'_>) {
    let figures = screen.figures;
    let title = format!(
        " refused last; quarantine: {} open, incidents: {} open ",
        whole(figures.quarantine_open),
        whole(figures.incidents_open)
    );
    let block = Block::bordered().title(title);
    match screen.refusals {
        Refusals::Unknown(why) => {
            frame.render_widget(Paragraph::new(visible(why).dark_gray()).block(block), area);
        }
        Refusals::Known(rows) => {
            let rows = rows.iter().map(|row| {
                let when = row.first_seen.to_string();
                // Its microseconds help nobody here.
                let when = when.split('.').next().unwrap_or_default();
                Row::new([when, &row.code, &row.first, &row.reason].map(visible))
            });
            let widths = [Constraint::Length(19), Constraint::Length(20), Constraint::Length(20), Constraint::Fill(1)];
            frame.render_widget(Table::new(rows, widths).block(block), area);
        }
    }
}

fn right(text: impl Into<String>) -> Cell<'static> {
    Cell::from(Line::from(text.into()).right_aligned())
}

fn times(name: &str, quantiles: Option<Quantiles>) -> Line<'static> {
    match quantiles {
        None => Line::raw(format!("{name:<12}{:>7}{:>9}", "-", "-")),
        Some(Quantiles { p50, p99 }) => Line::raw(format!("{name:<12}{:>7}{:>9}", time(p50), time(p99))),
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 10.0 => format!("{seconds:.0} s"),
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds => format!("{:.0} ms", seconds * 1000.0),
    }
}

/// `1,234,567`.
fn whole(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
