//! Texts without the passwords that stand in them.

use tidegate::StoreUrl;

/// What a password of a URL's query is called: `password`, `sentinel_password`.
const PASSWORD: &str = "password=";

/// Without what stands between `://` and `@`, and without what a query calls a password. Up to the end of the line, as
/// what is in a password may look like the end of anything else.
pub(super) fn masked(text: &str) -> String {
    text.split_inclusive('\n').map(|line| without_queried(&without_login(&without_invalid_url(line)))).collect()
}

/// A line of a file that sets a URL which is invalid: any part of it may be the password.
fn without_invalid_url(line: &str) -> String {
    let Some((before, value)) = line.split_once("url").filter(|(_, value)| value.trim_start().starts_with('=')) else {
        return line.to_owned();
    };
    let value = value.trim_start().trim_start_matches('=').trim();
    let is_valid = StoreUrl::read(value.trim_matches(['"', '\''])).is_ok();
    if is_valid { line.to_owned() } else { format!("{before}url = \"***\"\n") }
}

/// Returns true if what stands at `at` in a file is of a `[[token]]`: a value there may be the token itself.
pub(super) fn is_of_token(content: &str, at: usize) -> bool {
    let before = content.get(..at).unwrap_or(content);
    // The line that it is in may be the header.
    let lines = before.lines().rev().map(str::trim_start).filter(|line| line.starts_with('['));
    lines.take(1).any(|header| header.starts_with("[[token]]"))
}

/// A message without the values of the lines that it shows.
pub(super) fn without_values(message: &str) -> String {
    let shown = |line: &str| match line.split_once('=') {
        Some((before, _)) if before.contains('|') => format!("{before}= ***"),
        _ => line.to_owned(),
    };
    message.lines().map(shown).collect::<Vec<_>>().join("\n")
}

fn without_login(line: &str) -> String {
    let Some((before, after)) = line.split_once("://") else { return line.to_owned() };
    match after.rsplit_once('@') {
        Some((_, place)) => format!("{before}://***@{place}"),
        None => line.to_owned(),
    }
}

fn without_queried(line: &str) -> String {
    let mut parts = line.split(PASSWORD);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(['&', '"', '\n']).unwrap_or(part.len());
        shown.push_str(PASSWORD);
        shown.push_str("***");
        shown.push_str(part.get(end..).unwrap_or_default());
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::{is_of_token, masked, without_values};

    #[test]
    fn b7_no_token_is_shown_that_stands_in_the_file_itself() {
        let content = "[http]\nlisten = \"x\"\n[[token]]\nscopes = []\ntoken = \"hunter2\"\n[log]\nlevel = 1\n";
        for (part, is_secret) in [("listen", false), ("token = ", true), ("level", false)] {
            assert_eq!(is_of_token(content, content.find(part).unwrap()), is_secret, "{part}");
        }
        let message = "TOML parse error at line 5\n  |\n5 | token = \"hunter2\"\n  | ^^^^^\nunknown field";
        assert_eq!(
            without_values(message),
            "TOML parse error at line 5\n  |\n5 | token = ***\n  | ^^^^^\nunknown field"
        );
    }

    #[test]
    fn no_password_is_left() {
        for (text, shown) in [
            ("memory://", "memory://"),
            ("redis://127.0.0.1/?timeout=1s", "redis://127.0.0.1/?timeout=1s"),
            ("redis://user:pa@ss@h/0", "redis://***@h/0"),
            (
                "redis+sentinel://h/m?sentinel_password=s&timeout=1s",
                "redis+sentinel://h/m?sentinel_password=***&timeout=1s",
            ),
            ("url = \"redis://u:p'w x@h/?timeout=1s\"\n  ^\nb", "url = \"redis://***@h/?timeout=1s\"\n  ^\nb"),
            // In a URL that is mistyped, any part may be the password.
            ("1 | url = \"redis://u:secret\"\n  ^\n", "1 | url = \"***\"\n  ^\n"),
            ("url='redis//u:secret@h'\n", "url = \"***\"\n"),
            (
                "url = \"redis+sentinel://u:p@h/m?sentinel_password=s\"\n",
                "url = \"redis+sentinel://***@h/m?sentinel_password=***\"\n",
            ),
        ] {
            assert_eq!(masked(text), shown);
        }
    }
}
