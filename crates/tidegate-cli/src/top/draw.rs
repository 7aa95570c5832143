//! The screen of `tidegate top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table, TableState};

use super::summary::{HistoryRow, KeyRates, TopSummary};

/// The state of the screen.
pub(super) struct View {
    url: String,
    summary: TopSummary,
    error: Option<String>,
    shows_busiest: bool,
    selected: TableState,
    has_colors: bool,
}

impl View {
    pub(super) fn new(url: String, summary: TopSummary) -> Self {
        Self {
            url,
            summary,
            error: None,
            shows_busiest: false,
            selected: TableState::default(),
            has_colors: crate::plot_file::has_colors(),
        }
    }

    pub(super) fn update(&mut self, summary: TopSummary) {
        self.summary = summary;
        self.error = None;
    }

    pub(super) fn fail(&mut self, error: String) {
        self.error = Some(error);
    }

    pub(super) fn switch(&mut self) {
        self.shows_busiest = !self.shows_busiest;
        self.selected.select(None);
    }

    pub(super) fn select(&mut self, step: isize) {
        let count = self.keys().len();
        if count == 0 {
            return;
        }
        let next = match self.selected.selected() {
            None => 0,
            Some(index) => index.saturating_add_signed(step).min(count - 1),
        };
        self.selected.select(Some(next));
    }

    fn keys(&self) -> &[KeyRates] {
        if self.shows_busiest {
            &self.summary.busiest
        } else {
            &self.summary.denied
        }
    }

    fn color(&self, color: Color) -> Style {
        match self.has_colors {
            true => Style::default().fg(color),
            false => Style::default(),
        }
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, figures, chart, table, detail, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(5),
            Constraint::Min(5),
            Constraint::Length(4),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_head(frame, head);
        self.draw_figures(frame, figures);
        self.draw_chart(frame, chart);
        self.draw_table(frame, table);
        self.draw_detail(frame, detail);
        let help = "q quit   Tab denied or busiest keys   ↑↓ select";
        frame.render_widget(
            Paragraph::new(help).style(self.color(Color::DarkGray)),
            foot,
        );
    }

    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect) {
        let (text, style) = match &self.error {
            Some(error) => (format!("{}: {error}", self.url), self.color(Color::Red)),
            None => (
                self.summary.headline(),
                Style::default().add_modifier(Modifier::BOLD),
            ),
        };
        frame.render_widget(Paragraph::new(text).style(style), area);
    }

    fn draw_figures(&self, frame: &mut Frame<'_>, area: Rect) {
        let totals = self.summary.totals;
        let figure = |number: f64, name: &'static str, color: Color| {
            [
                Span::styled(
                    format!("{number:.1}"),
                    self.color(color).add_modifier(Modifier::BOLD),
                ),
                Span::raw(format!(" {name}/s   ")),
            ]
        };
        let spans = [
            figure(totals.allowed, "allowed", Color::Blue),
            figure(totals.denied, "denied", Color::Red),
            figure(totals.near_limit, "near limit", Color::Yellow),
            figure(totals.degraded, "degraded", Color::Magenta),
        ];
        frame.render_widget(Line::from_iter(spans.into_iter().flatten()), area);
    }

    fn draw_chart(&self, frame: &mut Frame<'_>, area: Rect) {
        let [left, right] =
            Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)])
                .areas(area);
        self.draw_history(frame, left, ("allowed/s", Color::Blue), |row| row.1);
        self.draw_history(frame, right, ("denied/s", Color::Red), |row| row.2);
    }

    fn draw_history(
        &self,
        frame: &mut Frame<'_>,
        area: Rect,
        (title, color): (&str, Color),
        value: fn(&HistoryRow) -> f64,
    ) {
        let history = &self.summary.history;
        let width = usize::from(area.width.saturating_sub(2));
        let from = history.len().saturating_sub(width);
        let values = history[from..].iter().map(|row| value(row).ceil() as u64);
        let widget = Sparkline::default()
            .block(Block::bordered().title(title))
            .data(values.collect::<Vec<_>>())
            .style(self.color(color));
        frame.render_widget(widget, area);
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let title = match self.shows_busiest {
            true => "busiest keys",
            false => "denied keys",
        };
        let cells = |key: &KeyRates| {
            let cells = key.cells();
            Row::new(cells.map(|cell| cell.chars().filter(|c| !c.is_control()).collect::<String>()))
        };
        let rows: Vec<Row<'_>> = self.keys().iter().map(cells).collect();
        let widths = [
            Constraint::Fill(3),
            Constraint::Fill(2),
            Constraint::Length(10),
            Constraint::Length(9),
            Constraint::Fill(3),
            Constraint::Length(12),
            Constraint::Length(12),
        ];
        let header = [
            "key",
            "policy",
            "requests/s",
            "denied/s",
            "denied by",
            "denied for",
            "free in",
        ];
        let style = Style::default().add_modifier(Modifier::REVERSED);
        let table = Table::new(rows, widths)
            .header(Row::new(header).style(self.color(Color::DarkGray)))
            .row_highlight_style(style)
            .block(Block::bordered().title(title));
        frame.render_stateful_widget(table, area, &mut self.selected);
    }

    fn draw_detail(&self, frame: &mut Frame<'_>, area: Rect) {
        let selected = self
            .selected
            .selected()
            .and_then(|index| self.keys().get(index));
        let text = match selected {
            None => self.summary.denials(),
            Some(key) => {
                let by = key.limit.as_deref().unwrap_or("no limit");
                let behavior = match key.behavior.as_deref() {
                    Some("hammers") => "sends before it may",
                    Some("obeys") => "waits for Retry-After",
                    _ => "behaviour after a denial unknown",
                };
                format!(
                    "{} of {}: denied by {by} for {}, free in {}; {behavior}",
                    key.key,
                    key.policy,
                    key.since(),
                    key.free_in()
                )
            }
        };
        let block = Block::bordered().title("detail");
        frame.render_widget(
            Paragraph::new(text)
                .block(block)
                .wrap(ratatui::widgets::Wrap { trim: true }),
            area,
        );
    }
}
