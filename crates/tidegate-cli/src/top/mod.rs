//! `tidegate top`: the dashboard in the terminal.

mod draw;
mod summary;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tidegate::Clock;

use crate::check::OutputFormat;
use crate::interrupt::Interrupt;
use draw::View;
use summary::TopSummary;

/// Show who is limited right now, live in the terminal
///
/// Reads the admin listener of `tidegate serve`: rates, the most denied and the busiest keys, the
/// limit that denied each, since when and until when. Keys are masked unless the server has
/// admin.show_keys. Keys: q quits, Tab switches between denied and busiest keys, the arrows select
/// a key.
///
/// Without a terminal, or with --once, it prints the figures once. The variable TIDEGATE_TOKEN is
/// sent as a token.
///
/// Exit code: 0, or 2 if the server cannot be reached.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopOptions {
    /// URL of the admin listener
    #[arg(default_value = "http://127.0.0.1:9090")]
    url: String,
    /// File with a token that has the scope admin, instead of TIDEGATE_TOKEN
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print once and exit
    #[arg(long)]
    once: bool,
    /// Output format with --once
    #[arg(long, short, value_enum, default_value = "text", value_name = "FORMAT")]
    output: OutputFormat,
}

const EXAMPLES: &str = "\
Examples:
  tidegate top
  tidegate top http://127.0.0.1:9090 --once
  TIDEGATE_TOKEN=… tidegate top https://limits.internal:9090 --once --output json";

/// The interval of updates.
const EVERY: Duration = Duration::from_secs(1);
/// The time between looks at signals.
const LOOK: Duration = Duration::from_millis(100);
/// The timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn run(options: &TopOptions) -> anyhow::Result<()> {
    let source = Source::new(options)?;
    let text = source.read()?;
    let is_live = std::io::stdout().is_terminal() && !options.once;
    if is_live && options.output == OutputFormat::Text {
        return live(&source, &text);
    }
    let text = match options.output {
        OutputFormat::Json => text + "\n",
        OutputFormat::Text => TopSummary::parse(&text)?.text(),
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).context("standard output")
}

/// The server.
struct Source {
    agent: ureq::Agent,
    url: String,
    token: Option<String>,
}

impl Source {
    fn new(options: &TopOptions) -> anyhow::Result<Self> {
        let url = options.url.trim_end_matches('/').to_owned();
        if !url.starts_with("http://") && !url.starts_with("https://") {
            bail!("{url}: expected the URL of an admin listener such as http://127.0.0.1:9090");
        }
        let token = match &options.token_file {
            Some(file) => {
                let text = std::fs::read_to_string(file);
                let text = text.with_context(|| format!("--token-file {}", file.display()))?;
                Some(text.trim().to_owned())
            }
            None => std::env::var("TIDEGATE_TOKEN").ok(),
        };
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .build();
        Ok(Self {
            agent: config.into(),
            url,
            token,
        })
    }

    /// Returns the figures as JSON.
    fn read(&self) -> anyhow::Result<String> {
        let url = &self.url;
        let mut request = self.agent.get(format!("{url}/v1/top"));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let called = request.call();
        let mut response =
            called.with_context(|| format!("{url}: is `tidegate serve` running there?"))?;
        let text = response
            .body_mut()
            .read_to_string()
            .with_context(|| url.clone())?;
        match response.status().as_u16() {
            200 => Ok(text),
            401 | 403 => bail!("{url}: a token with the scope admin is needed: set TIDEGATE_TOKEN"),
            404 => bail!("{url}: expected the admin listener (admin.listen, port 9090 by default)"),
            status => bail!("{url}: status {status}"),
        }
    }
}

/// Draws until the user quits. The terminal is restored whatever happens.
fn live(source: &Source, first: &str) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init().context("the terminal")?;
    let result = live_loop(source, first, &mut terminal);
    ratatui::restore();
    result
}

fn live_loop(
    source: &Source,
    first: &str,
    terminal: &mut ratatui::DefaultTerminal,
) -> anyhow::Result<()> {
    let clock = Clock::system();
    // A signal ends the loop too, so that the terminal is restored.
    let interrupt = Interrupt::handled()?;
    let mut view = View::new(source.url.clone(), TopSummary::parse(first)?);
    let mut next = clock.now().saturating_add(EVERY);
    loop {
        terminal.draw(|frame| view.draw(frame))?;
        if interrupt.is_set() {
            return Ok(());
        }
        let wait = next.saturating_since(clock.now()).min(LOOK);
        if event::poll(wait)? {
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                let is_interrupt =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    _ if is_interrupt => return Ok(()),
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Tab => view.switch(),
                    KeyCode::Down | KeyCode::Char('j') => view.select(1),
                    KeyCode::Up | KeyCode::Char('k') => view.select(-1),
                    _ => {}
                }
            }
            continue;
        }
        if clock.now() < next {
            continue;
        }
        next = clock.now().saturating_add(EVERY);
        match source.read().and_then(|text| TopSummary::parse(&text)) {
            Ok(summary) => view.update(summary),
            Err(error) => view.fail(format!("{error:#}")),
        }
    }
}
