//! Requests with 10,000 different keys, encoded once.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate_server::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate_server::proto::pb::gubernator::{GetRateLimitsReq, RateLimitReq};

const KEYS: usize = 10_000;

/// throttlecrab's request.
#[derive(Clone, PartialEq, Message)]
struct ThrottleRequest {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(int32, tag = "2")]
    max_burst: i32,
    #[prost(int32, tag = "3")]
    count_per_period: i32,
    #[prost(int32, tag = "4")]
    period: i32,
    #[prost(int32, tag = "5")]
    quantity: i32,
}

fn encoded(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.encoded_len()).expect("a small message"));
    message.encode(&mut bytes).expect("a buffer that grows");
    bytes.freeze()
}

fn for_keys(message: impl Fn(String) -> Bytes) -> Vec<Bytes> {
    (0..KEYS)
        .map(|number| message(format!("user-{number}")))
        .collect()
}

pub(super) fn should_rate_limit() -> Vec<Bytes> {
    for_keys(|value| {
        encoded(&RateLimitRequest {
            domain: "bench".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![Entry {
                    key: "user".to_owned(),
                    value,
                }],
                ..RateLimitDescriptor::default()
            }],
            hits_addend: 0,
        })
    })
}

pub(super) fn throttle() -> Vec<Bytes> {
    for_keys(|key| {
        encoded(&ThrottleRequest {
            key,
            max_burst: 1_000_000,
            count_per_period: 1_000_000,
            period: 60,
            quantity: 1,
        })
    })
}

pub(super) fn get_rate_limits() -> Vec<Bytes> {
    for_keys(|unique_key| {
        encoded(&GetRateLimitsReq {
            requests: vec![RateLimitReq {
                name: "bench".to_owned(),
                unique_key,
                hits: 1,
                limit: 1_000_000,
                duration: 60_000,
                ..RateLimitReq::default()
            }],
        })
    })
}
