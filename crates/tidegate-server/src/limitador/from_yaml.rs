//! Reads limitador's file: a list of limits.

use crate::descriptors::RuleError;
use crate::yaml::{self, Content, Node, Position, Scalar};

const KEYS: [&str; 7] = [
    "id",
    "name",
    "namespace",
    "max_value",
    "seconds",
    "conditions",
    "variables",
];

/// A limit as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitadorSource {
    pub(crate) at: Position,
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) namespace: String,
    pub(crate) max_value: u64,
    pub(crate) seconds: u64,
    pub(crate) conditions: Vec<String>,
    pub(crate) variables: Vec<String>,
}

/// Reads a file.
pub(super) fn read(file: &str, text: &str) -> Result<Vec<LimitadorSource>, RuleError> {
    let root =
        yaml::parse(text).map_err(|error| RuleError::new(file, error.message, Some(error.at)))?;
    let reader = Reader { file };
    match &root.content {
        Content::List(items) => items.iter().map(|item| reader.limit(item)).collect(),
        _ if root.is_null() => Ok(Vec::new()),
        _ => Err(reader.error("expected a list of limits", &root)),
    }
}

struct Reader<'a> {
    file: &'a str,
}

impl Reader<'_> {
    fn error(&self, message: impl Into<String>, node: &Node) -> RuleError {
        RuleError::new(self.file, message, Some(node.at))
    }

    fn limit(&self, node: &Node) -> Result<LimitadorSource, RuleError> {
        let Content::Map(entries) = &node.content else {
            return Err(self.error("expected a limit", node));
        };
        for (key, _) in entries {
            let name = key.text().unwrap_or_default();
            if !KEYS.contains(&name) {
                let message = format!("unknown key '{name}': expected {}", KEYS.join(", "));
                return Err(self.error(message, key));
            }
        }
        for required in ["namespace", "seconds", "conditions", "variables"] {
            if node.get(required).is_none() {
                return Err(self.error(format!("`{required}` is missing"), node));
            }
        }
        let namespace = self.text(node, "namespace")?.unwrap_or_default();
        if namespace.is_empty() {
            return Err(self.error("`namespace` is empty: expected a name", node));
        }
        Ok(LimitadorSource {
            at: node.at,
            id: self.text(node, "id")?,
            name: self.text(node, "name")?,
            namespace,
            max_value: self.number(node, "max_value")?,
            seconds: self.number(node, "seconds")?,
            conditions: self.expressions(node, "conditions")?,
            variables: self.expressions(node, "variables")?,
        })
    }

    fn text(&self, node: &Node, key: &str) -> Result<Option<String>, RuleError> {
        match node.get(key).filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(value) => match value.text() {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err(self.error(format!("`{key}` is invalid: expected a string"), value)),
            },
        }
    }

    /// Returns a number, or 0 if it is absent.
    fn number(&self, node: &Node, key: &str) -> Result<u64, RuleError> {
        let Some(value) = node.get(key).filter(|value| !value.is_null()) else {
            return Ok(0);
        };
        let number = match value.content {
            Content::Scalar(_, Scalar::Integer(number)) => u64::try_from(number).ok(),
            _ => None,
        };
        let message = || format!("`{key}` is invalid: expected a whole number, 0 or more");
        number.ok_or_else(|| self.error(message(), value))
    }

    /// Returns a list of expressions. A null is an empty list.
    fn expressions(&self, node: &Node, key: &str) -> Result<Vec<String>, RuleError> {
        let Some(value) = node.get(key).filter(|value| !value.is_null()) else {
            return Ok(Vec::new());
        };
        let message = || format!("`{key}` is invalid: expected a list of expressions");
        let Content::List(items) = &value.content else {
            return Err(self.error(message(), value));
        };
        let text = |item: &Node| match item.text() {
            Some(text) => Ok(text.to_owned()),
            None => Err(self.error(message(), item)),
        };
        items.iter().map(text).collect()
    }
}
