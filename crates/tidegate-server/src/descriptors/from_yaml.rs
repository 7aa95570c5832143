//! Reads the files of envoyproxy/ratelimit. Keys are checked first, then the types of values, with
//! its error messages.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

use super::source::{DescriptorSource, DomainSource, LimitExtensions, LimitSource, RuleError};
use crate::yaml::{self, Content, Node, Scalar};

/// The keys that may stand anywhere. Those of the last line are ours.
const KEYS: [&str; 20] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    METADATA,
    "algorithm",
    "burst",
    "debt",
    "unit_multiplier",
];
const METADATA: &str = "metadata";

/// Reads one file.
pub(crate) fn read(file: &str, text: &str) -> Result<DomainSource, RuleError> {
    let root = yaml::parse(text).map_err(|error| {
        let message = format!("error loading config file: {}", error.message);
        RuleError::new(file, message, Some(error.at))
    })?;
    let reader = Reader { file };
    match &root.content {
        Content::Map(_) => reader.check_keys(&root)?,
        _ if root.is_null() => {}
        _ => return Err(reader.mismatch(&root, "map")),
    }
    Ok(DomainSource {
        name: file.to_owned(),
        domain: reader.text(&root, "domain")?,
        at: Some(root.get("domain").unwrap_or(&root).at),
        descriptors: reader.descriptors(&root)?,
    })
}

struct Reader<'a> {
    file: &'a str,
}

impl Reader<'_> {
    fn error(&self, message: impl Into<String>, node: &Node) -> RuleError {
        RuleError::new(self.file, message, Some(node.at))
    }

    /// Returns the error for a value of the wrong type.
    fn mismatch(&self, node: &Node, expected: &str) -> RuleError {
        let found = match &node.content {
            Content::List(_) => "a list".to_owned(),
            Content::Map(_) => "a map".to_owned(),
            Content::Scalar(text, _) => format!("`{text}`"),
        };
        let message =
            format!("error loading config file: cannot unmarshal {found} into {expected}");
        self.error(message, node)
    }

    /// Checks the keys of a map, and of all maps below it.
    fn check_keys(&self, map: &Node) -> Result<(), RuleError> {
        let Content::Map(entries) = &map.content else {
            return Ok(());
        };
        for (key, value) in entries {
            let Content::Scalar(name, Scalar::Text) = &key.content else {
                let message = format!("config error, key is not of type string: {}", shown(key));
                return Err(self.error(message, key));
            };
            if !KEYS.contains(&name.as_str()) {
                return Err(self.error(format!("config error, unknown key '{name}'"), key));
            }
            if name != METADATA {
                self.check_value(value)?;
            }
        }
        Ok(())
    }

    fn check_value(&self, value: &Node) -> Result<(), RuleError> {
        match &value.content {
            Content::List(items) => items.iter().try_for_each(|item| match item.content {
                Content::Map(_) => self.check_keys(item),
                _ => {
                    let list = "config error, yaml file contains list of type other than map";
                    Err(self.error(format!("{list}: {}", shown(item)), item))
                }
            }),
            Content::Map(_) => self.check_keys(value),
            // A date is a text, as yaml.v2 reads it.
            Content::Scalar(_, Scalar::Float(_)) => Err(self.error("error checking config", value)),
            Content::Scalar(_, Scalar::Integer(number)) if i64::try_from(*number).is_err() => {
                Err(self.error("error checking config", value))
            }
            Content::Scalar(..) => Ok(()),
        }
    }

    fn descriptors(&self, map: &Node) -> Result<Vec<DescriptorSource>, RuleError> {
        let descriptors = self.list(map, "descriptors")?;
        descriptors
            .iter()
            .map(|node| self.descriptor(node))
            .collect()
    }

    fn descriptor(&self, node: &Node) -> Result<DescriptorSource, RuleError> {
        let limit = node.get("rate_limit").filter(|limit| !limit.is_null());
        Ok(DescriptorSource {
            at: Some(node.at),
            key: self.text(node, "key")?,
            value: self.text(node, "value")?,
            rate_limit: limit.map(|limit| self.limit(limit)).transpose()?,
            descriptors: self.descriptors(node)?,
            shadow_mode: self.boolean(node, "shadow_mode")?,
            quota_mode: self.boolean(node, "quota_mode")?,
            detailed_metric: self.boolean(node, "detailed_metric")?,
            value_to_metric: self.boolean(node, "value_to_metric")?,
            share_threshold: self.boolean(node, "share_threshold")?,
            metadata: self.metadata(node)?,
        })
    }

    fn limit(&self, node: &Node) -> Result<LimitSource, RuleError> {
        if !matches!(node.content, Content::Map(_)) {
            return Err(self.mismatch(node, "a rate limit"));
        }
        let replaces = self.list(node, "replaces")?;
        let algorithm = self.text(node, "algorithm")?;
        Ok(LimitSource {
            at: Some(node.at),
            unit: self.text(node, "unit")?,
            requests_per_unit: self.number(node, "requests_per_unit")?.unwrap_or(0),
            is_unlimited: self.boolean(node, "unlimited")?,
            name: self.text(node, "name")?,
            replaces: replaces
                .iter()
                .map(|replaced| self.text(replaced, "name"))
                .collect::<Result<_, _>>()?,
            extensions: LimitExtensions {
                algorithm: (!algorithm.is_empty()).then_some(algorithm),
                burst: self.number(node, "burst")?,
                debt: self.number(node, "debt")?,
                unit_multiplier: self.number(node, "unit_multiplier")?,
            },
        })
    }

    /// Returns the value of a key, or `None` if it is absent or null.
    fn value<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
        node.get(key).filter(|value| !value.is_null())
    }

    /// Returns a text. Numbers and booleans are read as they are written.
    fn text(&self, node: &Node, key: &str) -> Result<String, RuleError> {
        let Some(value) = Self::value(node, key) else {
            return Ok(String::new());
        };
        let text = value.text().ok_or_else(|| self.mismatch(value, "string"))?;
        Ok(text.to_owned())
    }

    fn number(&self, node: &Node, key: &str) -> Result<Option<u32>, RuleError> {
        let Some(value) = Self::value(node, key) else {
            return Ok(None);
        };
        match value.content {
            Content::Scalar(_, Scalar::Integer(number)) => u32::try_from(number)
                .map(Some)
                .map_err(|_| self.mismatch(value, "uint32")),
            _ => Err(self.mismatch(value, "uint32")),
        }
    }

    fn boolean(&self, node: &Node, key: &str) -> Result<bool, RuleError> {
        match Self::value(node, key) {
            None => Ok(false),
            Some(value) => match value.content {
                Content::Scalar(_, Scalar::Bool(value)) => Ok(value),
                _ => Err(self.mismatch(value, "bool")),
            },
        }
    }

    fn list<'n>(&self, node: &'n Node, key: &str) -> Result<&'n [Node], RuleError> {
        match Self::value(node, key) {
            None => Ok(&[]),
            Some(value) => match &value.content {
                Content::List(items) => Ok(items),
                _ => Err(self.mismatch(value, "a list")),
            },
        }
    }

    fn metadata(&self, node: &Node) -> Result<Option<Struct>, RuleError> {
        let Some(value) = Self::value(node, METADATA) else {
            return Ok(None);
        };
        match metadata_value(value) {
            Ok(Value {
                kind: Some(Kind::StructValue(fields)),
            }) => Ok(Some(fields)),
            Ok(_) => Err(self.error("error parsing metadata: expected a map", value)),
            Err(node) => Err(self.error("error parsing metadata: expected keys of text", node)),
        }
    }
}

/// Converts metadata. Fails with the key that is not a text.
fn metadata_value(node: &Node) -> Result<Value, &Node> {
    let kind = match &node.content {
        Content::Scalar(text, meaning) => match meaning {
            Scalar::Null => Kind::NullValue(0),
            Scalar::Bool(value) => Kind::BoolValue(*value),
            Scalar::Integer(number) => Kind::NumberValue(*number as f64),
            Scalar::Float(number) => Kind::NumberValue(*number),
            Scalar::Timestamp | Scalar::Text => Kind::StringValue(text.clone()),
        },
        Content::List(items) => Kind::ListValue(ListValue {
            values: items.iter().map(metadata_value).collect::<Result<_, _>>()?,
        }),
        Content::Map(entries) => {
            let mut fields = Struct::default();
            for (key, value) in entries {
                let Content::Scalar(name, Scalar::Text) = &key.content else {
                    return Err(key);
                };
                fields.fields.insert(name.clone(), metadata_value(value)?);
            }
            Kind::StructValue(fields)
        }
    };
    Ok(Value { kind: Some(kind) })
}

/// Returns a value as Go prints it.
fn shown(node: &Node) -> String {
    match &node.content {
        Content::Scalar(_, Scalar::Null) => "<nil>".to_owned(),
        Content::Scalar(_, Scalar::Bool(value)) => value.to_string(),
        Content::Scalar(_, Scalar::Integer(number)) => number.to_string(),
        Content::Scalar(text, _) => text.clone(),
        Content::List(items) => {
            let items: Vec<String> = items.iter().map(shown).collect();
            format!("[{}]", items.join(" "))
        }
        Content::Map(_) => "map".to_owned(),
    }
}
