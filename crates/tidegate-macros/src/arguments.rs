//! What stands between the parentheses.

use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, Ident, LitStr, Result, Token};
use tidegate_core::{Name, Policy};

/// What stands between the parentheses, checked.
pub(crate) struct Arguments {
    pub(crate) policy: LitStr,
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

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if !input.peek(LitStr) {
            return Err(input.error("expected a policy first, such as \"100/minute\""));
        }
        let policy = policy(input)?;
        let mut all = Self {
            policy,
            key: None,
            cost: None,
            tier: None,
            tiers: Vec::new(),
            name: None,
            denied: None,
            responds: false,
        };
        let mut tier_at = None;
        while !input.is_empty() {
            input.parse::<Token![,]>().map_err(|error| {
                Error::new(
                    error.span(),
                    format!("expected a comma, then {}", &EXPECTED[9..]),
                )
            })?;
            if input.is_empty() {
                break;
            }
            let option: Ident = input
                .parse()
                .map_err(|error| Error::new(error.span(), EXPECTED))?;
            match option.to_string().as_str() {
                "key" => once(&option, &mut all.key, value(input)?)?,
                "cost" => once(&option, &mut all.cost, value(input)?)?,
                "tier" => {
                    tier_at = Some(option.span());
                    once(&option, &mut all.tier, value(input)?)?;
                }
                "denied" => once(&option, &mut all.denied, value(input)?)?,
                "name" => once(&option, &mut all.name, name(input)?)?,
                "respond" => all.responds = true,
                "tiers" => all.tiers.extend(tiers(input)?),
                other => {
                    return Err(Error::new(
                        option.span(),
                        format!("unknown option `{other}`: {EXPECTED}"),
                    ));
                }
            }
        }
        match (tier_at, all.tiers.is_empty()) {
            (Some(at), true) => Err(Error::new(
                at,
                "a tier without tiers: expected tiers(premium = \"1_000/minute\"), too",
            )),
            (None, false) => Err(Error::new(
                input.span(),
                "tiers without a tier: expected tier = …, too",
            )),
            _ => Ok(all),
        }
    }
}

/// `= value`
fn value(input: ParseStream<'_>) -> Result<Expr> {
    input.parse::<Token![=]>()?;
    input.parse()
}

fn once<T>(option: &Ident, place: &mut Option<T>, value: T) -> Result<()> {
    if place.replace(value).is_some() {
        return Err(Error::new(
            option.span(),
            format!("`{option}` is there twice: expected it once"),
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

/// A text that is a policy; where it is not, the error points into it.
fn policy(input: ParseStream<'_>) -> Result<LitStr> {
    let text: LitStr = input.parse()?;
    match text.value().parse::<Policy>() {
        Ok(_) => Ok(text),
        Err(error) => Err(Error::new(text.span(), error)),
    }
}

/// `(premium = "1_000/minute", "very-large" = "10_000/minute")`
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
