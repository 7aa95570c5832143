//! `cargo xtask picture`: draws docs/terminal.svg, the picture in the README, from a real session.
//!
//! The session runs the server on free ports. The picture shows the default ports instead, so it
//! matches the commands in the README.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};

const CHECK: &str = r#"{"limits": "2/minute", "key": "user:42"}"#;
/// Columns of the terminal; longer lines continue on the next.
const COLUMNS: usize = 96;

/// One line of the picture.
enum Line {
    Command(String),
    Output(String),
}

pub(crate) fn draw(root: &Path) -> anyhow::Result<()> {
    let program = root.join("target/release/tidegate");
    let server = Server::start(&program)?;
    let mut lines = vec![Line::Command("tidegate serve".to_owned())];
    lines.extend(server.greeting.iter().cloned().map(Line::Output));
    let url = format!("{}/v1/check", server.url);
    server.run(
        &mut lines,
        &["curl", "-s", &url, "-d", CHECK],
        &format!("curl http://127.0.0.1:8080/v1/check -d '{CHECK}'"),
    )?;
    for _ in 0..2 {
        let program = program.display().to_string();
        let url = server.url.clone();
        let arguments = [
            &program, "check", "user:42", "-p", "2/minute", "--server", &url,
        ];
        let shown = "tidegate check user:42 -p 2/minute --server http://127.0.0.1:8080";
        server.run(&mut lines, &arguments, shown)?;
    }
    let path = root.join("docs/terminal.svg");
    std::fs::write(&path, svg(&lines))?;
    println!("{}", path.display());
    Ok(())
}

/// A server on free ports. It ends with this value.
struct Server {
    child: Child,
    url: String,
    greeting: Vec<String>,
}

impl Server {
    fn start(program: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .args(["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| program.display().to_string())?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let (mut url, mut greeting) = (String::new(), Vec::new());
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            if line.starts_with("Try: ") {
                break;
            }
            let is_http = line.trim_start().starts_with("http ");
            if let Some(at) = line.find("http://").filter(|_| is_http) {
                url = line[at..].trim().to_owned();
            }
            let is_admin = line.trim_start().starts_with("admin ");
            greeting.push(match (is_http, is_admin) {
                (true, _) => default_port(&line, "8080"),
                (_, true) => default_port(&line, "9090"),
                _ => line,
            });
        }
        if url.is_empty() {
            bail!("the server printed no address");
        }
        Ok(Self {
            child,
            url,
            greeting,
        })
    }

    /// Runs a command and adds it, as `shown`, and its output to the picture.
    fn run(&self, lines: &mut Vec<Line>, command: &[&str], shown: &str) -> anyhow::Result<()> {
        let output = Command::new(command[0]).args(&command[1..]).output()?;
        lines.push(Line::Command(shown.to_owned()));
        let text = String::from_utf8(output.stdout)?;
        lines.extend(
            text.trim_end()
                .lines()
                .map(|line| Line::Output(line.to_owned())),
        );
        lines.push(Line::Output(String::new()));
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Replaces the free port of a greeting line by the default one.
fn default_port(line: &str, port: &str) -> String {
    let Some(start) = line.find("127.0.0.1:").map(|at| at + "127.0.0.1:".len()) else {
        return line.to_owned();
    };
    let end = line[start..]
        .find(|c: char| !c.is_ascii_digit())
        .map_or(line.len(), |length| start + length);
    format!("{}{port}{}", &line[..start], &line[end..])
}

/// Renders the session as an SVG that needs no font file.
fn svg(lines: &[Line]) -> String {
    let mut body = String::new();
    let mut row = 0;
    for line in lines {
        let (text, prompt, colour) = match line {
            Line::Command(text) => (text, "$ ", "#7ee787"),
            Line::Output(text) => (text, "", "#e6edf3"),
        };
        for part in wrapped(&format!("{prompt}{text}")) {
            row += 1;
            let y = 12 + row * 18;
            body.push_str(&format!(
                "<text x=\"16\" y=\"{y}\" fill=\"{colour}\" xml:space=\"preserve\">{}</text>\n",
                escaped(part)
            ));
        }
    }
    let (width, height) = (32 + COLUMNS * 8, 24 + row * 18);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"13\">\n\
         <title>A terminal session with Tidegate</title>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#0d1117\"/>\n{body}</svg>\n"
    )
}

/// Breaks a line after a comma or a space, so that each part fits the terminal.
fn wrapped(mut text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    while text.len() > COLUMNS {
        let end = text[..COLUMNS]
            .rfind([',', ' '])
            .map_or(COLUMNS, |at| at + 1);
        parts.push(&text[..end]);
        text = &text[end..];
    }
    parts.push(text);
    parts
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Draws the simulations of docs/choosing-an-algorithm.md and docs/replay.md.
pub(crate) fn plot(root: &Path) -> anyhow::Result<()> {
    let pictures: [(&str, &[&str]); 2] = [
        (
            "boundary.svg",
            &[
                "--policy",
                "fixed_window 100/minute",
                "--policy",
                "sliding_window_counter 100/minute",
                "--traffic",
                "boundary",
            ],
        ),
        (
            "bucket.svg",
            &[
                "--policy",
                "2/second burst=20",
                "--traffic",
                "burst:40/20s",
                "--duration",
                "60s",
            ],
        ),
    ];
    for (name, arguments) in pictures {
        let file = root.join("docs").join(name);
        let status = Command::new(root.join("target/release/tidegate"))
            .arg("simulate")
            .args(arguments)
            .arg("--plot")
            .arg(&file)
            .stdout(Stdio::null())
            .status()?;
        if !status.success() {
            bail!("{} cannot be drawn", file.display());
        }
        println!("{}", file.display());
    }
    Ok(())
}
