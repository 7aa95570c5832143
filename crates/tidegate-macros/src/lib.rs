//! `#[rate_limit("100/minute", key = ...)]`: see `tidegate::rate_limit`.

mod arguments;
mod expand;

use proc_macro::TokenStream;

/// Holds an async function to a limit.
///
/// ```ignore
/// #[rate_limit("100/minute", key = user.id, cost = query.pages, tier = user.tier, tiers(premium = "1_000/minute"))]
/// async fn search(user: User, query: Query) -> Result<Page, AppError> { ... }
/// ```
///
/// - The policy comes first. Text that is not one is an error of the compiler that points at the mistake.
/// - `key = ...`: who is limited: anything that can be displayed, made of the arguments. Without it all calls share one limit.
/// - `cost = ...`: what a call costs; 1 where not given.
/// - `tier = ...` and `tiers(name = "policy", ...)`: other policies for some; where the tier is none of these, the first holds.
/// - `name = "..."`: the policy's name, in what who is limited is told; the function's path where not given, so that a function
///   that moves starts afresh. Functions of one name whose policies differ in limits and bursts only count together.
/// - `denied = ...`: what is returned when the limit denies, made of the `Limited` by a closure.
/// - `respond`: as an axum handler, whatever the return type is.
///
/// A function that returns a `Result`, or something whose name ends so, returns `Err(Limited.into())` when it is denied. Any other is taken for an axum
/// handler: it returns a response, of 429 when it is denied (feature `axum`).
///
/// Counts are kept in memory, or wherever `tidegate::attribute::connect` has said at the start of the program.
#[proc_macro_attribute]
pub fn rate_limit(arguments: TokenStream, function: TokenStream) -> TokenStream {
    expand::expand(arguments.into(), function.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
