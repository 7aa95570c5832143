//! The expansion of a limited function.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Error, ItemFn, LitStr, Result, ReturnType, Type, parse2};

use crate::arguments::RateLimitArguments;

pub(crate) fn expand(arguments: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let arguments: RateLimitArguments = parse2(arguments)?;
    let function: ItemFn = parse2(function).map_err(|error| {
        Error::new(
            error.span(),
            "expected an async function with a body: #[rate_limit] limits calls",
        )
    })?;
    if function.sig.asyncness.is_none() {
        return Err(Error::new_spanned(
            function.sig.fn_token,
            "expected an async function: the store may have to be asked",
        ));
    }
    Ok(limited(&arguments, function))
}

fn limited(arguments: &RateLimitArguments, mut function: ItemFn) -> TokenStream {
    let check = check(arguments);
    let body = &function.block;
    let limited = format_ident!("__tidegate_limited");
    let is_result = returns_result(&function.sig.output);
    let body = if let Some(denied) = &arguments.denied {
        quote! {{ if let ::core::result::Result::Err(#limited) = #check { return (#denied)(#limited); } #body }}
    } else if is_result && !arguments.responds {
        quote! {{
            if let ::core::result::Result::Err(#limited) = #check {
                return ::core::result::Result::Err(::core::convert::From::from(#limited));
            }
            #body
        }}
    } else {
        let has_generics = !function.sig.generics.params.is_empty();
        let (annotation, declared) = match &function.sig.output {
            // The declared type still determines the body's type.
            ReturnType::Type(_, kind) if matches!(**kind, Type::ImplTrait(_)) => {
                let declared = quote! {
                    fn __tidegate_declared(answer: #kind) -> #kind { answer }
                    let __tidegate_response = __tidegate_declared(__tidegate_response);
                };
                (
                    TokenStream::new(),
                    if has_generics {
                        TokenStream::new()
                    } else {
                        declared
                    },
                )
            }
            ReturnType::Type(_, kind) => (quote! { : #kind }, TokenStream::new()),
            ReturnType::Default => (quote! { : () }, TokenStream::new()),
        };
        function.sig.output = syn::parse_quote! { -> ::tidegate::attribute::Response };
        quote! {{
            let __tidegate_verdict = match #check {
                ::core::result::Result::Ok(verdict) => verdict,
                ::core::result::Result::Err(#limited) => {
                    return ::tidegate::attribute::IntoResponse::into_response(#limited);
                }
            };
            let __tidegate_response #annotation = async move #body.await;
            #declared
            let __tidegate_response = ::tidegate::attribute::IntoResponse::into_response(__tidegate_response);
            ::tidegate::attribute::with_headers(__tidegate_response, &__tidegate_verdict)
        }}
    };
    let ItemFn {
        attrs, vis, sig, ..
    } = &function;
    quote! { #(#attrs)* #[allow(unused_braces)] #vis #sig #body }
}

/// Returns the expression that checks a call.
fn check(arguments: &RateLimitArguments) -> TokenStream {
    let RateLimitArguments {
        policy,
        limiter,
        key,
        cost,
        tier,
        tiers,
        name,
        ..
    } = arguments;
    // The path of an item inside the function. It contains the type that a method belongs to.
    let name = match name {
        Some(name) => quote! { || #name },
        None => quote! { || {
            fn __tidegate_here() {}
            ::tidegate::attribute::path_of(&__tidegate_here)
        } },
    };
    let (tier_names, tier_policies): (Vec<_>, Vec<_>) =
        tiers.iter().map(|(name, policy)| (name, policy)).unzip();
    let key = key.as_ref().map(|key| quote! { .key(&(#key)) });
    let cost = cost.as_ref().map(|cost| quote! { .cost(#cost) });
    let tier = tier.as_ref().map(|tier| quote! { .tier(&(#tier)) });
    let run = match limiter {
        // A clone, because the expression may borrow from a temporary.
        Some(limiter) => quote! {
            let __tidegate_limiter = ::core::clone::Clone::clone(&(#limiter));
            __tidegate_call.check_with(&__tidegate_limiter).await
        },
        None => quote! { __tidegate_call.check().await },
    };
    let policy = policy.as_ref().map_or_else(String::new, LitStr::value);
    // Temporaries of the expressions, such as a lock, are dropped before the store is asked.
    quote! {{
        static __TIDEGATE_LIMITED: ::tidegate::attribute::LimitedFunction =
            ::tidegate::attribute::LimitedFunction::new(#name, #policy, &[#((#tier_names, #tier_policies)),*]);
        let __tidegate_call = __TIDEGATE_LIMITED.call() #key #cost #tier;
        #run
    }}
}

/// Returns `true` for `Result`, and for aliases whose name ends with it.
fn returns_result(output: &ReturnType) -> bool {
    let ReturnType::Type(_, kind) = output else {
        return false;
    };
    let Type::Path(path) = &**kind else {
        return false;
    };
    path.path
        .segments
        .last()
        .is_some_and(|segment| segment.ident.to_string().ends_with("Result"))
}
