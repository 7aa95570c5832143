//! The attribute macro `#[rate_limit("100/minute", key = ...)]`, see `tidegate::rate_limit`.

mod arguments;
mod expand;

use proc_macro::TokenStream;

/// Limits the calls of an async function.
///
/// # Examples
///
/// ```
/// use tidegate::attribute::Limited;
/// use tidegate::rate_limit;
///
/// #[rate_limit("5/minute", key = user, cost = pages, tier = tier, tiers(premium = "100/minute"))]
/// async fn export(user: u64, pages: u32, tier: &str) -> Result<String, Limited> {
///     Ok(format!("{pages} pages for {user}"))
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// assert!(export(42, 5, "free").await.is_ok());
/// assert!(export(42, 1, "free").await.is_err());
/// assert!(export(42, 1, "premium").await.is_ok());
/// # }
/// ```
///
/// # Arguments
///
/// - The policy comes first. An invalid policy is a compile error that points at the mistake.
///   `limiter = ...` in its place uses a `Limiter` of the program, such as one with a manual clock.
/// - `key = ...`: the key, any expression of the arguments that is a key: text, bytes, an integer,
///   an address, or a tuple such as `(tenant, user)`. Without it all calls share one limit.
/// - `cost = ...`: the cost of a call. The default is 1.
/// - `tier = ...` and `tiers(name = "policy", ...)`: other policies for some keys. An unknown tier
///   uses the first policy.
/// - `name = "..."`: the policy's name, which clients see. The default is the function's path, so
///   moving a function resets its counters. Functions with the same name whose policies differ only
///   in limits and bursts share counters.
/// - `denied = ...`: a closure that turns the `Limited` into the return value.
/// - `respond`: treats the function as an axum handler, whatever its return type.
///
/// A function that returns a `Result`, or a type whose name ends with it, returns
/// `Err(Limited.into())` when it is denied. Any other function is treated as an axum handler: it
/// returns a response, with status 429 when it is denied (feature `axum`).
///
/// Counters are in memory, or on the store that `tidegate::attribute::connect` has set at the start
/// of the program.
#[proc_macro_attribute]
pub fn rate_limit(arguments: TokenStream, function: TokenStream) -> TokenStream {
    expand::expand(arguments.into(), function.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
