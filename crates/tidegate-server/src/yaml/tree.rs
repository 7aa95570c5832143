//! Parses a YAML document into a tree: aliases and merge keys are resolved, duplicate keys are an
//! error.

use std::borrow::Cow;
use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::{Position, Scalar};

/// The maximum depth of nodes.
const MAX_DEPTH: usize = 64;
/// The maximum number of nodes, aliases included.
const MAX_NODES: usize = 1_000_000;

/// A node of a document.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) content: Content,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// The text, and its meaning. A quoted text is always a text.
    Scalar(String, Scalar),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

/// The error for a file that is not YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct YamlError {
    pub(crate) message: String,
    pub(crate) at: Position,
}

impl YamlError {
    fn new(message: impl Into<String>, at: Position) -> Self {
        Self {
            message: message.into(),
            at,
        }
    }
}

impl Node {
    fn null(at: Position) -> Self {
        Self {
            at,
            content: Content::Scalar(String::new(), Scalar::Null),
        }
    }

    /// Returns `true` for an absent value.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self.content, Content::Scalar(_, Scalar::Null))
    }

    /// Returns the text of a scalar, whatever its meaning. A null has none.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(_, Scalar::Null) => None,
            Content::Scalar(text, _) => Some(text),
            Content::List(_) | Content::Map(_) => None,
        }
    }

    /// Returns the value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        let Content::Map(entries) = &self.content else {
            return None;
        };
        let found = entries.iter().find(|(name, _)| name.text() == Some(key))?;
        Some(&found.1)
    }

    fn size(&self) -> usize {
        match &self.content {
            Content::Scalar(..) => 1,
            Content::List(items) => 1 + items.iter().map(Self::size).sum::<usize>(),
            Content::Map(entries) => {
                let size = |(key, value): &(Self, Self)| key.size() + value.size();
                1 + entries.iter().map(size).sum::<usize>()
            }
        }
    }
}

/// Parses the only document of a text. An empty text is a null.
pub(crate) fn parse(text: &str) -> Result<Node, YamlError> {
    let mut reader = Reader {
        parser: Parser::new_from_str(text.trim_start_matches('\u{feff}')),
        anchors: HashMap::new(),
        nodes: 0,
    };
    let mut root = None;
    loop {
        let (event, at) = reader.next()?;
        match event {
            Event::StreamEnd => break,
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            _ if root.is_some() => {
                return Err(YamlError::new("expected one document, not several", at));
            }
            event => root = Some(reader.node(event, at, 0)?.0),
        }
    }
    Ok(root.unwrap_or_else(|| Node::null(Position { line: 1, column: 1 })))
}

struct Reader<'input> {
    parser: Parser<'input, saphyr_parser::StrInput<'input>>,
    /// Nodes that aliases name, with their heights.
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
}

/// A node, and the number of levels below it.
type Measured = (Node, usize);

fn position(span: Span) -> Position {
    Position {
        line: span.start.line(),
        column: span.start.col() + 1,
    }
}

impl<'input> Reader<'input> {
    fn next(&mut self) -> Result<(Event<'input>, Position), YamlError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, position(span))),
            Some(Err(error)) => {
                let mark = error.marker();
                let (line, column) = (mark.line(), mark.col() + 1);
                Err(YamlError::new(error.info(), Position { line, column }))
            }
            None => Ok((Event::StreamEnd, Position::default())),
        }
    }

    fn node(
        &mut self,
        event: Event<'input>,
        at: Position,
        depth: usize,
    ) -> Result<Measured, YamlError> {
        self.count(1, at)?;
        check_depth(depth, at)?;
        let (content, height, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => (scalar(text, style, tag, at)?, 0, anchor),
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), "seq", at)?;
                let (content, height) = self.list(depth)?;
                (content, height, anchor)
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), "map", at)?;
                let (content, height) = self.map(depth)?;
                (content, height, anchor)
            }
            Event::Alias(anchor) => {
                let found = self.anchors.get(&anchor).cloned();
                let (node, height) = found.ok_or_else(|| YamlError::new("unknown anchor", at))?;
                self.count(node.size(), at)?;
                check_depth(depth + height, at)?;
                return Ok((node, height));
            }
            _ => return Err(YamlError::new("the document ends too early", at)),
        };
        let node = Node { at, content };
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), height));
        }
        Ok((node, height))
    }

    /// Counts nodes, so that a few aliases of aliases do not fill the memory.
    fn count(&mut self, more: usize, at: Position) -> Result<(), YamlError> {
        self.nodes = self.nodes.saturating_add(more);
        if self.nodes > MAX_NODES {
            let message = format!("too large: expected at most {MAX_NODES} values");
            return Err(YamlError::new(message, at));
        }
        Ok(())
    }

    fn list(&mut self, depth: usize) -> Result<(Content, usize), YamlError> {
        let (mut items, mut height) = (Vec::new(), 0);
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                return Ok((Content::List(items), height));
            }
            let (item, below) = self.node(event, at, depth + 1)?;
            height = height.max(below + 1);
            items.push(item);
        }
    }

    /// Reads a map. Merged maps apply where they stand, as in yaml.v2: a later key wins.
    fn map(&mut self, depth: usize) -> Result<(Content, usize), YamlError> {
        let (mut entries, mut own, mut height) = (Vec::new(), Vec::new(), 0);
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let is_merge =
                matches!(&event, Event::Scalar(text, ScalarStyle::Plain, ..) if text == "<<");
            let (key, _) = self.node(event, at, depth + 1)?;
            let (event, value_at) = self.next()?;
            let (value, below) = self.node(event, value_at, depth + 1)?;
            height = height.max(below + 1);
            if is_merge {
                for (key, value) in merged(value)? {
                    set(&mut entries, key, value);
                }
            } else {
                own.push(key.clone());
                set(&mut entries, key, value);
            }
        }
        check_duplicates(&own)?;
        Ok((Content::Map(entries), height))
    }
}

fn check_depth(depth: usize, at: Position) -> Result<(), YamlError> {
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    let message = format!("nested too deeply: expected at most {MAX_DEPTH} levels");
    Err(YamlError::new(message, at))
}

/// Sets a key of a map. A key that is no text is added.
fn set(entries: &mut Vec<(Node, Node)>, key: Node, value: Node) {
    let is_same =
        |(other, _): &&mut (Node, Node)| key.text().is_some() && other.text() == key.text();
    match entries.iter_mut().find(is_same) {
        Some(entry) => *entry = (key, value),
        None => entries.push((key, value)),
    }
}

/// Returns the entries of a merged map, or of a list of them, in the order in which they apply: of
/// a list the first map wins.
fn merged(value: Node) -> Result<Vec<(Node, Node)>, YamlError> {
    let not_a_map = |at: Position| YamlError::new("`<<` merges maps: expected a map", at);
    match value.content {
        Content::Map(entries) => Ok(entries),
        Content::List(items) => {
            let mut all = Vec::new();
            for item in items.into_iter().rev() {
                match item.content {
                    Content::Map(entries) => all.extend(entries),
                    _ => return Err(not_a_map(item.at)),
                }
            }
            Ok(all)
        }
        Content::Scalar(..) => Err(not_a_map(value.at)),
    }
}

fn check_duplicates(keys: &[Node]) -> Result<(), YamlError> {
    let mut seen = std::collections::HashSet::new();
    for key in keys {
        if let Some(text) = key.text()
            && !seen.insert(text)
        {
            let message = format!("duplicate key '{text}': expected each key once");
            return Err(YamlError::new(message, key.at));
        }
    }
    Ok(())
}

fn scalar(
    text: Cow<'_, str>,
    style: ScalarStyle,
    tag: Option<Cow<'_, Tag>>,
    at: Position,
) -> Result<Content, YamlError> {
    let meaning = match &tag {
        Some(tag) => {
            check_tag(Some(tag), "str", at)?;
            Scalar::Text
        }
        None if style == ScalarStyle::Plain => Scalar::of_plain(&text),
        None => Scalar::Text,
    };
    Ok(Content::Scalar(text.into_owned(), meaning))
}

/// Accepts no tag, or the one that changes nothing.
fn check_tag(tag: Option<&Tag>, expected: &str, at: Position) -> Result<(), YamlError> {
    match tag {
        Some(tag) if !tag.is_yaml_core_schema() || tag.suffix != expected => {
            let (handle, suffix) = (&tag.handle, &tag.suffix);
            let message = format!("unknown tag {handle}{suffix}: expected none");
            Err(YamlError::new(message, at))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_keys_aliases_and_positions() {
        let text = "base: &base {unit: day, count: 010}\nrule:\n  <<: *base\n  unit: hour\n";
        let root = parse(text).unwrap();
        let rule = root.get("rule").unwrap();
        assert_eq!(rule.get("unit").unwrap().text(), Some("hour"));
        let count = &rule.get("count").unwrap().content;
        assert!(matches!(count, Content::Scalar(text, Scalar::Integer(8)) if text == "010"));
        assert_eq!(
            rule.get("unit").unwrap().at,
            Position { line: 4, column: 9 }
        );
    }

    #[test]
    fn merged_maps_apply_where_they_stand() {
        let text = "a: &a {x: 1, y: 1}\nb: &b {x: 2}\nlate: {x: 9, <<: *a}\nearly: {<<: *a, x: 9}\nlist: {<<: [*a, *b]}\n";
        let root = parse(text).unwrap();
        let x = |name: &str| {
            root.get(name)
                .unwrap()
                .get("x")
                .unwrap()
                .text()
                .unwrap()
                .to_owned()
        };
        assert_eq!([x("late"), x("early"), x("list")], ["1", "9", "1"]);
    }

    #[test]
    fn aliases_do_not_nest_without_bound() {
        let mut text = "m0: &a0 [x]\n".to_owned();
        for number in 1..200 {
            let (open, close) = ("[".repeat(40), "]".repeat(40));
            text.push_str(&format!(
                "m{number}: &a{number} {open}*a{}{close}\n",
                number - 1
            ));
        }
        let error = parse(&text).unwrap_err();
        assert!(error.message.contains("nested too deeply"), "{error:?}");
    }

    #[test]
    fn bad_documents_have_a_position() {
        let deep = "[".repeat(100);
        let bombs: String = (1..12)
            .map(|n| {
                format!(
                    "a{n}: &a{n} [*a{0},*a{0},*a{0},*a{0},*a{0},*a{0},*a{0}]\n",
                    n - 1
                )
            })
            .collect();
        let bomb = format!("a0: &a0 [x]\n{bombs}");
        for (text, message) in [
            ("a: 1\na: 2\n", "duplicate key 'a'"),
            ("a: [1\n", ""),
            ("a: !!binary x\n", "unknown tag"),
            ("---\na: 1\n---\nb: 2\n", "one document"),
            ("a: *none\n", ""),
            ("a: {<<: 1}\n", "expected a map"),
            (&deep, ""),
            (&bomb, "too large"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message.contains(message), "{text}: {error:?}");
            assert!(error.at.line > 0, "{text}: {error:?}");
        }
        assert!(parse("").unwrap().is_null());
        assert!(parse("# only a comment\n").unwrap().is_null());
    }
}
