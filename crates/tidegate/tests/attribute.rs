//! `#[rate_limit]` on functions and on handlers.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Display;

use axum::Router;
use axum::body::Body;
use axum::extract::Query;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use tidegate::attribute::Limited;
use tidegate::{AsKey, rate_limit};
use tower::ServiceExt;

#[derive(Debug)]
enum AppError {
    Limited(Limited),
    Negative,
}

impl From<Limited> for AppError {
    fn from(limited: Limited) -> Self {
        Self::Limited(limited)
    }
}

#[rate_limit("2/365 days", key = user)]
async fn per_user(user: u64) -> Result<u64, AppError> {
    Ok(user * 2)
}

#[rate_limit("3/365 days")]
async fn shared(number: i64) -> Result<i64, AppError> {
    if number < 0 {
        return Err(AppError::Negative);
    }
    Ok(number)
}

#[rate_limit(
    "sliding_window_log 5/365 days", key = user.name, cost = pages, tier = user.tier,
    tiers(gold = "sliding_window_log 20/365 days", "very-large" = "sliding_window_log 50/365 days"), name = "search"
)]
async fn search(user: &User, pages: f64) -> Result<f64, AppError> {
    Ok(pages)
}

struct User {
    name: String,
    tier: &'static str,
}

#[rate_limit("1/365 days", key = key, denied = |_| None)]
async fn generic<K: AsKey + Display + ?Sized>(key: &K) -> Option<String> {
    Some(key.to_string())
}

struct Service {
    name: &'static str,
}

impl Service {
    #[rate_limit("1/365 days", key = self.name)]
    async fn method(&self) -> Result<&'static str, AppError> {
        Ok(self.name)
    }
}

struct Other {
    name: std::sync::Mutex<String>,
}

impl Other {
    /// The lock is not held during the call to the store.
    #[rate_limit("1/365 days", key = *self.name.lock().unwrap())]
    async fn method(&self) -> Result<(), AppError> {
        Ok(())
    }
}

fn assert_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test]
async fn functions_are_limited() {
    drop(assert_send(
        Other {
            name: String::new().into(),
        }
        .method(),
    ));
    assert_eq!(per_user(1).await.unwrap(), 2);
    assert_eq!(per_user(1).await.unwrap(), 2);
    let Err(AppError::Limited(limited)) = per_user(1).await else {
        panic!("not limited")
    };
    assert_eq!(limited.status(), 429);
    assert!(
        limited
            .retry_after()
            .is_some_and(|wait| wait.as_secs() > 1_000_000)
    );
    let message = limited.to_string();
    assert!(
        message.contains("attribute.per_user: token_bucket 2/365 days; try again in"),
        "{message}"
    );
    assert_eq!(per_user(2).await.unwrap(), 4);
    // A call that fails for another reason counts, too.
    assert!(matches!(shared(-1).await, Err(AppError::Negative)));
    assert_eq!((shared(1).await.unwrap(), shared(2).await.unwrap()), (1, 2));
    assert!(matches!(shared(3).await, Err(AppError::Limited(_))));
    assert_eq!(
        (generic("a").await.as_deref(), generic("a").await),
        (Some("a"), None)
    );
    let service = Service { name: "s" };
    assert!(service.method().await.is_ok() && service.method().await.is_err());
    // A method of the same name on another type counts separately.
    assert!(
        Other {
            name: "s".to_owned().into()
        }
        .method()
        .await
        .is_ok()
    );
}

#[tokio::test]
async fn costs_and_tiers_are_applied() {
    let mut user = User {
        name: "ann".to_owned(),
        tier: "",
    };
    assert!(search(&user, 4.5).await.is_ok());
    assert!(search(&user, 1.0).await.is_err());
    // Each tier counts separately.
    user.tier = "gold";
    assert!(search(&user, 20.0).await.is_ok());
    assert!(search(&user, 0.001).await.is_err());
    user.tier = "very-large";
    assert!(search(&user, 30.0).await.is_ok());
    let Err(AppError::Limited(bad)) = search(&user, -1.0).await else {
        panic!("not an error")
    };
    assert_eq!((bad.status(), bad.verdict().is_none()), (400, true));
    let Err(AppError::Limited(never)) = search(&user, 51.0).await else {
        panic!("not limited")
    };
    assert_eq!((never.status(), never.retry_after()), (429, None));
}

#[derive(serde::Deserialize)]
struct Params {
    who: String,
}

#[rate_limit("fixed_window 1/365 days", key = query.who)]
async fn handler(Query(query): Query<Params>) -> String {
    format!("hello {}", query.who)
}

#[rate_limit("fixed_window 1/365 days")]
async fn opaque() -> impl IntoResponse {
    (StatusCode::CREATED, "made")
}

#[rate_limit("fixed_window 1/365 days", respond)]
async fn fallible() -> Result<String, StatusCode> {
    Err(StatusCode::IM_A_TEAPOT)
}

#[tokio::test]
async fn handlers_respond_with_429() {
    let router = Router::new()
        .route("/", get(handler))
        .route("/opaque", get(opaque))
        .route("/fallible", get(fallible));
    let send = async |path: &str| {
        router
            .clone()
            .oneshot(Request::get(path).body(Body::empty()).unwrap())
            .await
            .unwrap()
    };
    let first = send("/?who=ann").await;
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(
        first.headers()["ratelimit-policy"],
        r#""attribute.handler";q=1;w=31536000"#
    );
    assert_eq!(
        axum::body::to_bytes(first.into_body(), 1_000)
            .await
            .unwrap(),
        "hello ann"
    );
    let denied = send("/?who=ann").await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    assert!(
        denied.headers()["retry-after"]
            .to_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
            >= 1
    );
    let problem = axum::body::to_bytes(denied.into_body(), 1_000)
        .await
        .unwrap();
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&problem).unwrap()["status"],
        429
    );
    assert_eq!(send("/?who=bob").await.status(), StatusCode::OK);
    assert_eq!(send("/opaque").await.status(), StatusCode::CREATED);
    assert_eq!(
        send("/opaque").await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    assert_eq!(send("/fallible").await.status(), StatusCode::IM_A_TEAPOT);
    assert_eq!(
        send("/fallible").await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
}

/// Keys of several parts need no `format!`, and a limiter of the program may have a manual clock.
#[tokio::test]
async fn tuples_are_keys_and_a_limiter_may_have_a_manual_clock() {
    #[rate_limit("1/365 days", key = (tenant, user))]
    async fn parts(tenant: &str, user: u64) -> Result<(), Limited> {
        Ok(())
    }
    assert!(parts("a:1", 2).await.is_ok());
    assert!(parts("a", 12).await.is_ok());
    assert!(parts("a:1", 2).await.is_err());

    struct Api {
        limiter: tidegate::Limiter,
    }

    impl Api {
        #[rate_limit(limiter = self.limiter, key = user, cost = 2)]
        async fn call(&self, user: u32) -> Result<(), Limited> {
            Ok(())
        }
    }
    let clock = tidegate::ManualClock::new();
    let store = tidegate::MemoryStore::builder()
        .clock(clock.clone())
        .build()
        .unwrap();
    let api = Api {
        limiter: tidegate::Limiter::new(store, "3/minute".parse().unwrap()),
    };
    assert!(api.call(7).await.is_ok());
    let limited = api.call(7).await.unwrap_err();
    assert_eq!(
        (limited.status(), limited.retry_after()),
        (429, Some(std::time::Duration::from_secs(20)))
    );
    clock.advance(std::time::Duration::from_secs(20));
    assert!(api.call(7).await.is_ok());
}
