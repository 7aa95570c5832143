//! The arguments of `#[rate_limit]`.

use proc_macro2::Span;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, Ident, LitStr, Result, Token};
use tidegate_core::{Name, Policy};

/// The parsed and checked arguments of `#[rate_limit]`.
pub(crate) struct RateLimitArguments {
    /// The policy, or `None` with a limiter.
    pub(crate) policy: Option<LitStr>,
    pub(crate) limiter: Option<Expr>,
    pub(crate) key: Option<Expr>,
    pub(crate) cost: Option<Expr>,
    pub(crate) tier: Option<Expr>,
    pub(crate) tiers: Vec<(String, LitStr)>,
    pub(crate) name: Option<LitStr>,
    pub(crate) denied: Option<Expr>,
    pub(crate) responds: bool,
}

const EXPECTED: &str =
    "expected key = …, cost = …, tier = …, tiers(…), name = \"…\", denied = … or respond";

impl Parse for RateLimitArguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut arguments = Self {
            policy: None,
            limiter: None,
            key: None,
            cost: None,
            tier: None,
            tiers: Vec::new(),
            name: None,
            denied: None,
            responds: false,
        };
        if input.peek(LitStr) {
            arguments.policy = Some(policy(input)?);
        } else {
            arguments.limiter = Some(limiter(input)?);
        }
        let mut tier_span = None;
        while comma_and_more(input)? {
            let option: Ident = input
                .parse()
                .map_err(|error| Error::new(error.span(), EXPECTED))?;
            if option == "tier" {
                tier_span = Some(option.span());
            }
            arguments.parse_option(&option, input)?;
        }
        arguments.check_tiers(tier_span, input)?;
        Ok(arguments)
    }
}

impl RateLimitArguments {
    fn parse_option(&mut self, option: &Ident, input: ParseStream<'_>) -> Result<()> {
        match option.to_string().as_str() {
            "key" => once(option, &mut self.key, value(input)?),
            "cost" => once(option, &mut self.cost, value(input)?),
            "tier" => once(option, &mut self.tier, value(input)?),
            "denied" => once(option, &mut self.denied, value(input)?),
            "name" => once(option, &mut self.name, name(input)?),
            "respond" => {
                self.responds = true;
                Ok(())
            }
            "tiers" => {
                self.tiers.extend(tiers(input)?);
                Ok(())
            }
            other => {
                let message = format!("unknown option `{other}`: {EXPECTED}");
                Err(Error::new(option.span(), message))
            }
        }
    }

    /// Checks that `tier` and `tiers` are given together.
    fn check_tiers(&self, tier_span: Option<Span>, input: ParseStream<'_>) -> Result<()> {
        if self.limiter.is_some() && (tier_span.is_some() || !self.tiers.is_empty()) {
            let message = "tiers need a policy: expected no `limiter` beside them";
            return Err(Error::new(
                tier_span.unwrap_or_else(|| input.span()),
                message,
            ));
        }
        match (tier_span, self.tiers.is_empty()) {
            (Some(span), true) => Err(Error::new(
                span,
                "`tier` without `tiers`: expected tiers(premium = \"1_000/minute\") too",
            )),
            (None, false) => Err(Error::new(
                input.span(),
                "`tiers` without `tier`: expected tier = … too",
            )),
            _ => Ok(()),
        }
    }
}

/// Parses `limiter = …`, in place of a policy.
fn limiter(input: ParseStream<'_>) -> Result<Expr> {
    let expected = "expected a policy first, such as \"100/minute\", or limiter = …";
    let option: Ident = input
        .parse()
        .map_err(|error| Error::new(error.span(), expected))?;
    if option != "limiter" {
        return Err(Error::new(option.span(), expected));
    }
    value(input)
}

/// Parses the comma before the next option. Returns `false` at the end.
fn comma_and_more(input: ParseStream<'_>) -> Result<bool> {
    if input.is_empty() {
        return Ok(false);
    }
    input.parse::<Token![,]>().map_err(|error| {
        let options = EXPECTED.trim_start_matches("expected ");
        Error::new(error.span(), format!("expected a comma, then {options}"))
    })?;
    Ok(!input.is_empty())
}

/// Parses `= value`.
fn value(input: ParseStream<'_>) -> Result<Expr> {
    input.parse::<Token![=]>()?;
    input.parse()
}

fn once<T>(option: &Ident, place: &mut Option<T>, value: T) -> Result<()> {
    if place.replace(value).is_some() {
        return Err(Error::new(
            option.span(),
            format!("`{option}` is given twice: expected it once"),
        ));
    }
    Ok(())
}

fn name(input: ParseStream<'_>) -> Result<LitStr> {
    input.parse::<Token![=]>()?;
    let text: LitStr = input.parse()?;
    Name::new(&text.value()).map_err(|error| Error::new(text.span(), error))?;
    Ok(text)
}

/// Parses a policy. An error points into its text.
fn policy(input: ParseStream<'_>) -> Result<LitStr> {
    let text: LitStr = input.parse()?;
    match text.value().parse::<Policy>() {
        Ok(_) => Ok(text),
        Err(error) => Err(Error::new(text.span(), error)),
    }
}

/// Parses `(premium = "1_000/minute", "very-large" = "10_000/minute")`.
fn tiers(input: ParseStream<'_>) -> Result<Vec<(String, LitStr)>> {
    let content;
    syn::parenthesized!(content in input);
    let all = Punctuated::<Tier, Token![,]>::parse_terminated(&content)?;
    let mut tiers: Vec<(String, LitStr)> = Vec::new();
    for tier in all {
        if tiers.iter().any(|(name, _)| *name == tier.name) {
            return Err(Error::new(
                tier.policy.span(),
                format!("there are two tiers `{}`: expected one", tier.name),
            ));
        }
        tiers.push((tier.name, tier.policy));
    }
    Ok(tiers)
}

struct Tier {
    name: String,
    policy: LitStr,
}

impl Parse for Tier {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let (name, at) = if input.peek(LitStr) {
            let text: LitStr = input.parse()?;
            (text.value(), text.span())
        } else {
            let name: Ident = input.parse()?;
            (name.to_string(), name.span())
        };
        Name::new(&name).map_err(|error| Error::new(at, error))?;
        input.parse::<Token![=]>()?;
        Ok(Self {
            name,
            policy: policy(input)?,
        })
    }
}
