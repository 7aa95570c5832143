//! Parses policy text.
//!
//! ```text
//! policy := limit (";" limit)*
//! limit  := [algorithm] rate option*
//! rate   := count ("/" | "per") [count] unit
//! option := "burst=" count | "anchor=" ("clock" | "first_hit") | "debt=" count
//! ```

use std::ops::Range;
use std::time::Duration;

use super::bounds::{MAX_LIMITS, OutOfBounds, Part};
use super::error::PolicyError;
use super::lexer::{Spanned, Token, tokens};
use super::limit::{Algorithm, Anchor, Limit, Rate};

const EXPECTED_ALGORITHM: &str = "expected fixed_window, sliding_window_log, sliding_window_counter, token_bucket, leaky_bucket, gcra, or a rate such as 100/minute";
const EXPECTED_UNIT: &str = "expected ms, second, minute, hour, day, week, month or year";
const EXPECTED_OPTION: &str = "expected burst=…, anchor=…, debt=…, `;` or the end";

pub(super) fn limits(text: &str) -> Result<Vec<Limit>, PolicyError> {
    let mut parser = Parser {
        text,
        tokens: tokens(text)?,
        next: 0,
    };
    let mut limits = vec![parser.limit()?];
    while let Some(token) = parser.advance() {
        match token.token {
            Token::Semicolon if limits.len() == MAX_LIMITS => {
                let span = token.span.start..text.len();
                return Err(parser.error(
                    span,
                    format!("too many limits: expected at most {MAX_LIMITS} in a policy"),
                ));
            }
            Token::Semicolon => limits.push(parser.limit()?),
            _ => return Err(parser.unexpected(&token, EXPECTED_OPTION)),
        }
    }
    Ok(limits)
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Spanned>,
    next: usize,
}

/// The positions of one limit's parts in the text.
struct Spans {
    limit: Range<usize>,
    period: Range<usize>,
    burst: Option<Range<usize>>,
    anchor: Option<Range<usize>>,
    debt: Option<Range<usize>>,
}

impl Parser<'_> {
    fn limit(&mut self) -> Result<Limit, PolicyError> {
        let algorithm = self.algorithm()?;
        let (rate, mut spans) = self.rate()?;
        let mut limit = Limit::new(algorithm, rate);
        while let Some(Spanned {
            token: Token::Word(name),
            span,
        }) = self.peek()
        {
            match name.as_str() {
                "burst" => self.burst(&mut limit, &mut spans, span.start)?,
                "anchor" => self.anchor(&mut limit, &mut spans, span.start)?,
                "debt" => self.debt(&mut limit, &mut spans, span.start)?,
                _ => {
                    return Err(
                        self.error(span, format!("unknown option `{name}`: {EXPECTED_OPTION}"))
                    );
                }
            }
        }
        limit
            .checked()
            .map_err(|out| self.out_of_bounds(out, &spans))
    }

    fn algorithm(&mut self) -> Result<Algorithm, PolicyError> {
        match self.peek() {
            Some(Spanned {
                token: Token::Word(name),
                span,
            }) => {
                let algorithm = algorithm_named(&name).ok_or_else(|| {
                    self.error(
                        span,
                        format!("unknown algorithm `{name}`: {EXPECTED_ALGORITHM}"),
                    )
                })?;
                self.advance();
                Ok(algorithm)
            }
            Some(Spanned {
                token: Token::Number(_),
                ..
            }) => Ok(Algorithm::TokenBucket),
            Some(token) => Err(self.unexpected(&token, EXPECTED_ALGORITHM)),
            None => Err(self.at_end("expected a limit such as 100/minute")),
        }
    }

    fn rate(&mut self) -> Result<(Rate, Spans), PolicyError> {
        let (limit, limit_span) = self.count("a count such as 100")?;
        match self.advance() {
            Some(Spanned {
                token: Token::Slash,
                ..
            }) => {}
            Some(Spanned {
                token: Token::Word(word),
                ..
            }) if word == "per" => {}
            Some(token) => return Err(self.unexpected(&token, "expected `/` or `per`")),
            None => return Err(self.at_end("expected `/` or `per`")),
        }
        let counted = match self.peek() {
            Some(Spanned {
                token: Token::Number(_),
                ..
            }) => Some(self.count("a count of units")?),
            _ => None,
        };
        let (unit_ms, unit_span) = self.unit()?;
        let (count, start) =
            counted.map_or((1, unit_span.start), |(count, span)| (count, span.start));
        let period_span = start..unit_span.end;
        // A product that does not fit is far out of bounds, and is reported as such.
        let period = Duration::from_millis(count.saturating_mul(unit_ms));
        let spans = Spans {
            limit: limit_span,
            period: period_span,
            burst: None,
            anchor: None,
            debt: None,
        };
        Ok((Rate { limit, period }, spans))
    }

    fn unit(&mut self) -> Result<(u64, Range<usize>), PolicyError> {
        match self.advance() {
            Some(Spanned {
                token: Token::Word(name),
                span,
            }) => unit_named(&name)
                .map(|unit_ms| (unit_ms, span.clone()))
                .ok_or_else(|| self.error(span, format!("unknown unit `{name}`: {EXPECTED_UNIT}"))),
            Some(token) => Err(self.unexpected(&token, EXPECTED_UNIT)),
            None => Err(self.at_end(EXPECTED_UNIT)),
        }
    }

    fn burst(
        &mut self,
        limit: &mut Limit,
        spans: &mut Spans,
        start: usize,
    ) -> Result<(), PolicyError> {
        self.option_sign()?;
        let (burst, value) = self.count("a count such as burst=50")?;
        self.once(&mut spans.burst, start..value.end, "burst")?;
        *limit = limit.burst(burst);
        Ok(())
    }

    fn anchor(
        &mut self,
        limit: &mut Limit,
        spans: &mut Spans,
        start: usize,
    ) -> Result<(), PolicyError> {
        const EXPECTED: &str = "expected anchor=clock or anchor=first_hit";
        self.option_sign()?;
        let token = self.advance().ok_or_else(|| self.at_end(EXPECTED))?;
        let anchor = [Anchor::Clock, Anchor::FirstHit]
            .into_iter()
            .find(|anchor| token.token == Token::Word(anchor.name().to_owned()))
            .ok_or_else(|| self.unexpected(&token, EXPECTED))?;
        self.once(&mut spans.anchor, start..token.span.end, "anchor")?;
        *limit = limit.anchor(anchor);
        Ok(())
    }

    fn debt(
        &mut self,
        limit: &mut Limit,
        spans: &mut Spans,
        start: usize,
    ) -> Result<(), PolicyError> {
        self.option_sign()?;
        let (debt, value) = self.count("a count such as debt=500")?;
        self.once(&mut spans.debt, start..value.end, "debt")?;
        *limit = limit.debt(debt);
        Ok(())
    }

    /// Skips the option's name and its `=`.
    fn option_sign(&mut self) -> Result<(), PolicyError> {
        self.advance();
        match self.advance() {
            Some(Spanned {
                token: Token::Equals,
                ..
            }) => Ok(()),
            Some(token) => Err(self.unexpected(&token, "expected `=`")),
            None => Err(self.at_end("expected `=`")),
        }
    }

    fn once(
        &self,
        seen: &mut Option<Range<usize>>,
        span: Range<usize>,
        name: &str,
    ) -> Result<(), PolicyError> {
        match seen.replace(span.clone()) {
            None => Ok(()),
            Some(_) => Err(self.error(span, format!("{name} is given twice: expected it once"))),
        }
    }

    fn count(&mut self, expected: &str) -> Result<(u64, Range<usize>), PolicyError> {
        match self.advance() {
            // A number that does not fit is far out of bounds, and is reported as such.
            Some(Spanned {
                token: Token::Number(digits),
                span,
            }) => Ok((digits.parse().unwrap_or(u64::MAX), span)),
            Some(token) => Err(self.unexpected(&token, &format!("expected {expected}"))),
            None => Err(self.at_end(&format!("expected {expected}"))),
        }
    }

    fn peek(&self) -> Option<Spanned> {
        self.tokens.get(self.next).cloned()
    }

    fn advance(&mut self) -> Option<Spanned> {
        let token = self.peek();
        self.next += usize::from(token.is_some());
        token
    }

    fn error(&self, span: Range<usize>, message: impl Into<String>) -> PolicyError {
        PolicyError::at(self.text, span, message)
    }

    fn unexpected(&self, token: &Spanned, expected: &str) -> PolicyError {
        let part = self.text.get(token.span.clone()).unwrap_or_default();
        let shown: String = part.chars().take(40).collect();
        self.error(
            token.span.clone(),
            format!("unexpected `{shown}`: {expected}"),
        )
    }

    fn at_end(&self, expected: &str) -> PolicyError {
        let end = self.text.trim_end().len();
        self.error(end..end, format!("the policy ends too early: {expected}"))
    }

    fn out_of_bounds(&self, out: OutOfBounds, spans: &Spans) -> PolicyError {
        let span = match out.part {
            Part::Limit => Some(&spans.limit),
            Part::Period => Some(&spans.period),
            Part::Burst => spans.burst.as_ref(),
            Part::Anchor => spans.anchor.as_ref(),
            Part::Debt => spans.debt.as_ref(),
        };
        self.error(span.unwrap_or(&spans.limit).clone(), out.message)
    }
}

fn algorithm_named(name: &str) -> Option<Algorithm> {
    match name {
        "moving_window" => Some(Algorithm::SlidingWindowLog),
        "sliding_window" => Some(Algorithm::SlidingWindowCounter),
        _ => Algorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name),
    }
}

fn unit_named(name: &str) -> Option<u64> {
    const SECOND: u64 = 1_000;
    const DAY: u64 = 86_400 * SECOND;
    Some(match name {
        "ms" | "millisecond" | "milliseconds" => 1,
        "s" | "sec" | "secs" | "second" | "seconds" => SECOND,
        "m" | "min" | "mins" | "minute" | "minutes" => 60 * SECOND,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3_600 * SECOND,
        "d" | "day" | "days" => DAY,
        "w" | "week" | "weeks" => 7 * DAY,
        "month" | "months" => 30 * DAY,
        "year" | "years" => 365 * DAY,
        _ => return None,
    })
}
