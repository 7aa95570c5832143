//! Removes passwords from messages.

use tidegate::StoreUrl;

/// The end of the names of password options in a URL: `password`, `sentinel_password`.
const PASSWORD: &str = "password=";

/// Removes credentials between `://` and `@`, and password options. Each is removed up to the end
/// of the line, because a password can contain any character.
pub(super) fn mask(text: &str) -> String {
    text.split_inclusive('\n')
        .map(|line| without_queried(&without_login(&without_invalid_url(line))))
        .collect()
}

/// Removes the URL from a line that sets an invalid one: any part may be the password.
fn without_invalid_url(line: &str) -> String {
    let Some((before, value)) = line
        .split_once("url")
        .filter(|(_, value)| value.trim_start().starts_with('='))
    else {
        return line.to_owned();
    };
    let value = value.trim_start().trim_start_matches('=').trim();
    let is_valid = value.trim_matches(['"', '\'']).parse::<StoreUrl>().is_ok();
    if is_valid {
        line.to_owned()
    } else {
        format!("{before}url = \"***\"\n")
    }
}

/// The sections of a file without secrets.
const PUBLIC: [&str; 11] = [
    "policies",
    "bounds",
    "log",
    "http",
    "resp",
    "grpc",
    "forward_auth",
    "limitador",
    "gubernator",
    "admin",
    "record",
];

/// Returns `true` if the text at `at` is in a section without secrets. Elsewhere a value may be a
/// token or a password.
pub(super) fn is_public(content: &str, at: usize) -> bool {
    let (before, after) = content.split_at_checked(at).unwrap_or((content, ""));
    let (above, begun) = before.rsplit_once('\n').unwrap_or(("", before));
    let line = format!("{begun}{}", after.lines().next().unwrap_or_default());
    let is_header = |line: &&str| line.trim_start().starts_with('[');
    let section = Some(&*line)
        .filter(is_header)
        .or_else(|| above.lines().rev().find(is_header))
        .unwrap_or(&line);
    let name = section.trim_start_matches(['[', ' ', '\t', '"', '\'']);
    PUBLIC.iter().any(|public| name.starts_with(public))
}

/// Removes the values from the lines that a message shows.
pub(super) fn without_values(message: &str) -> String {
    let shown = |line: &str| match line.split_once("| ") {
        Some((number, source)) if source.contains(|c: char| c.is_alphanumeric()) => {
            let key = source
                .split(['=', ' ', '\t', '"', '\''])
                .next()
                .unwrap_or_default();
            format!("{number}| {key} ***")
        }
        _ => line.to_owned(),
    };
    message.lines().map(shown).collect::<Vec<_>>().join("\n")
}

fn without_login(line: &str) -> String {
    let Some((before, after)) = line.split_once("://") else {
        return line.to_owned();
    };
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
    use super::{is_public, mask, without_values};

    #[test]
    fn b7_a_token_in_the_file_itself_is_masked() {
        let content = "[http]\nlisten = \"x\"\n[[ token ]]\nscopes = []\ntoken = \"hunter2\"\n[log]\nlevel = 1\n";
        for (part, is_shown) in [
            ("listen", true),
            ("token = ", false),
            ("[[", false),
            ("level", true),
            ("[log", true),
        ] {
            assert_eq!(
                is_public(content, content.find(part).unwrap()),
                is_shown,
                "{part}"
            );
        }
        assert!(!is_public("token = [{ token = \"hunter2\" }]", 11));
        assert!(is_public("http.listen = 5", 14) && !is_public("", 0));
        for source in [
            "token = \"hunter2\"",
            "token \"hunter2\"",
            "token=hunter2",
            "token\"hunter2",
        ] {
            let message =
                format!("TOML parse error at line 5\n  |\n5 | {source}\n  | ^^^^^\nunknown field");
            let shown = "TOML parse error at line 5\n  |\n5 | token ***\n  | ^^^^^\nunknown field";
            assert_eq!(without_values(&message), shown);
        }
    }

    #[test]
    fn passwords_are_masked() {
        for (text, shown) in [
            ("memory://", "memory://"),
            (
                "redis://127.0.0.1/?timeout=1s",
                "redis://127.0.0.1/?timeout=1s",
            ),
            ("redis://user:pa@ss@h/0", "redis://***@h/0"),
            (
                "redis+sentinel://h/m?sentinel_password=s&timeout=1s",
                "redis+sentinel://h/m?sentinel_password=***&timeout=1s",
            ),
            (
                "url = \"redis://u:p'w x@h/?timeout=1s\"\n  ^\nb",
                "url = \"redis://***@h/?timeout=1s\"\n  ^\nb",
            ),
            // In a mistyped URL any part may be the password.
            (
                "1 | url = \"redis://u:secret\"\n  ^\n",
                "1 | url = \"***\"\n  ^\n",
            ),
            ("url='redis//u:secret@h'\n", "url = \"***\"\n"),
            (
                "url = \"redis+sentinel://u:p@h/m?sentinel_password=s\"\n",
                "url = \"redis+sentinel://***@h/m?sentinel_password=***\"\n",
            ),
        ] {
            assert_eq!(mask(text), shown);
        }
    }
}
