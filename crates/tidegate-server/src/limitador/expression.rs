//! Conditions and variables: expressions in CEL over the descriptors or values of a request.

use std::collections::HashMap;

use cel::{Context, ExecutionError, Program, Value};

use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;

/// The maximum length of an expression.
const MAX_LENGTH: usize = 4_096;

/// A compiled expression.
pub(super) struct Expression {
    text: Box<str>,
    program: Program,
}

impl Expression {
    /// Compiles an expression, or returns the reason why it is invalid.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!(
                "the expression is too long: expected at most {MAX_LENGTH} characters"
            ));
        }
        let program = Program::compile(text).map_err(|errors| {
            let errors = errors.to_string();
            let first = errors.lines().next().unwrap_or_default();
            format!("invalid CEL expression '{text}': {first}")
        })?;
        if let Some(name) = unknown_function(&program) {
            return Err(format!(
                "unknown function '{name}' in CEL expression '{text}'"
            ));
        }
        Ok(Self {
            text: text.into(),
            program,
        })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Evaluates a condition. A value that the request does not have makes it false.
    pub(super) fn is_true(&self, context: &Context<'_, '_>) -> Result<bool, String> {
        match self.evaluate(context)? {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(value),
            Some(other) => Err(format!(
                "condition '{}' is a {}: expected true or false",
                self.text,
                other.type_of()
            )),
        }
    }

    /// Evaluates a variable. Returns `None` if the request does not have the value.
    pub(super) fn value(&self, context: &Context<'_, '_>) -> Result<Option<String>, String> {
        Ok(match self.evaluate(context)? {
            None => None,
            Some(Value::Null) => Some("null".to_owned()),
            Some(Value::String(text)) => Some(text.to_string()),
            Some(Value::Int(number)) => Some(number.to_string()),
            Some(Value::UInt(number)) => Some(number.to_string()),
            Some(Value::Float(number)) => Some(number.to_string()),
            Some(Value::Bool(value)) => Some(value.to_string()),
            Some(other) => {
                return Err(format!(
                    "variable '{}' is a {}: expected a string",
                    self.text,
                    other.type_of()
                ));
            }
        })
    }

    fn evaluate(&self, context: &Context<'_, '_>) -> Result<Option<Value>, String> {
        match self.program.execute(context) {
            Ok(value) => Ok(Some(value)),
            Err(
                ExecutionError::NoSuchKey(_)
                | ExecutionError::UndeclaredReference(_)
                | ExecutionError::IndexOutOfBounds(_),
            ) => Ok(None),
            Err(error) => Err(format!("expression '{}' failed: {error}", self.text)),
        }
    }
}

/// Returns a function that does not exist. At run time it would look like a missing value, and the
/// limit would not apply.
fn unknown_function(program: &Program) -> Option<String> {
    let references = program.references();
    let names = references.functions().into_iter();
    // Operators are functions with names such as `_==_`.
    let mut names = names.filter(|name| name.starts_with(|first: char| first.is_alphabetic()));
    // A name that is taken cannot be added.
    let is_unknown = |name: &&str| Context::default().add_function(name, |n: i64| n).is_ok();
    names.find(is_unknown).map(str::to_owned)
}

/// The values of a request that expressions see.
pub(crate) enum Bindings<'a> {
    /// `descriptors[0].key`.
    Descriptors(&'a [RateLimitDescriptor]),
    /// Each value under its own name, and all of them as `descriptors[0]`.
    Values(&'a HashMap<String, String>),
}

impl Bindings<'_> {
    /// Returns the context of a request.
    pub(super) fn context(&self) -> Context<'static, 'static> {
        let mut context = Context::default();
        match self {
            Self::Descriptors(descriptors) => {
                let maps = descriptors.iter().map(|descriptor| {
                    let entries = descriptor.entries.iter();
                    let entries = entries.map(|entry| (entry.key.clone(), entry.value.clone()));
                    Value::from(entries.collect::<HashMap<String, String>>())
                });
                let maps: Vec<Value> = maps.collect();
                context.add_variable_from_value("descriptors", maps);
            }
            Self::Values(values) => {
                // Newer versions of limitador show the values as a descriptor.
                let descriptor = Value::from((*values).clone());
                context.add_variable_from_value("descriptors", vec![descriptor]);
                for (name, value) in *values {
                    context.add_variable_from_value(name.clone(), value.clone());
                }
            }
        }
        context
    }
}

/// Binds `limit.name` and `limit.id`.
pub(super) fn bind_limit(context: &mut Context<'_, '_>, name: Option<&str>, id: Option<&str>) {
    let value = |text: Option<&str>| text.map_or(Value::Null, Value::from);
    let fields = [("name", value(name)), ("id", value(id))];
    let limit: HashMap<&str, Value> = fields.into();
    context.add_variable_from_value("limit", limit);
}
