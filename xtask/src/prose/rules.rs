//! The words and openers that our style rules out.

use super::text::{Kind, Passage, without_code};

/// Words that open a clause. A comment opens with a noun or a verb instead.
pub(crate) const CLAUSE_OPENERS: [&str; 11] = [
    "what", "whatever", "who", "whoever", "whom", "whose", "whether", "of", "how", "why", "which",
];

/// Words and phrases to avoid, each with a better one.
const AVOIDED: [(&str, &str); 15] = [
    ("nobody", "no client, unknown, null"),
    ("somebody", "a client, a caller"),
    ("everybody", "every client"),
    ("anybody", "any client"),
    ("whoever", "the client, the caller"),
    ("whom", "the client, the caller"),
    ("meanwhile", "while, in the meantime"),
    ("thereof", "of it"),
    ("lets off", "frees, resets"),
    ("let off", "freed, reset"),
    ("lets go", "releases, drops"),
    ("brought near", "prefetched"),
    ("is told", "receives, is set to"),
    ("are told", "receive"),
    ("anew", "again"),
];

/// Passages that may keep their words: a file, and a part of the text.
const ALLOWED: [(&str, &str); 3] = [
    // The rules themselves.
    ("xtask/src/prose/rules.rs", ""),
    ("xtask/src/prose/figures.rs", "per 1,000 words"),
    ("CONTRIBUTING.md", "nobody, somebody"),
];

/// Returns the rules that a passage breaks, as messages.
pub(crate) fn broken_by(passage: &Passage) -> Vec<String> {
    if is_allowed(passage) {
        return Vec::new();
    }
    let mut broken = Vec::new();
    if matches!(passage.kind, Kind::Doc | Kind::Comment) && opens_with_clause(passage) {
        broken.push("the comment opens with a clause: name the thing or the action".to_owned());
    }
    let prose = format!(" {} ", passage.words().join(" "));
    for (avoided, instead) in AVOIDED {
        if prose.contains(&format!(" {avoided} ")) {
            broken.push(format!("\"{avoided}\": write {instead}"));
        }
    }
    broken
}

/// Returns whether the first word of a passage opens a clause.
pub(crate) fn opens_with_clause(passage: &Passage) -> bool {
    let prose = without_code(&passage.text);
    // A code span in front is a noun.
    if passage.text.trim_start().starts_with('`') {
        return false;
    }
    let first = prose.split_whitespace().next().unwrap_or_default();
    let first = first
        .trim_matches(|c: char| !c.is_alphanumeric())
        .to_lowercase();
    // A question in a heading or an example is fine.
    let is_question = prose.trim_end().ends_with('?');
    CLAUSE_OPENERS.contains(&first.as_str()) && !is_question
}

fn is_allowed(passage: &Passage) -> bool {
    ALLOWED
        .iter()
        .any(|(file, part)| passage.file == *file && passage.text.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(kind: Kind, text: &str) -> usize {
        let text = text.to_owned();
        broken_by(&Passage {
            file: "src/lib.rs".to_owned(),
            line: 1,
            kind,
            text,
        })
        .len()
    }

    #[test]
    fn clauses_and_riddles_are_found_and_plain_sentences_are_not() {
        assert_eq!(findings(Kind::Doc, "What who is denied is told."), 2);
        assert_eq!(
            findings(
                Kind::Comment,
                "Of a tier that is not named, the default holds."
            ),
            1
        );
        assert_eq!(findings(Kind::Message, "nobody has asked"), 1);
        assert_eq!(findings(Kind::Doc, "The response to a denied request."), 0);
        assert_eq!(
            findings(Kind::Doc, "Returns whether the request is allowed."),
            0
        );
        assert_eq!(findings(Kind::Message, "What limit should I set?"), 0);
        assert_eq!(
            findings(Kind::Doc, "`of_path` takes the parameter's name."),
            0
        );
    }
}
