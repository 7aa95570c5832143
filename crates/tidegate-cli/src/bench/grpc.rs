//! A caller of Envoy's rate limit service.

use anyhow::Context;
use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::target::{BenchAnswer, BenchCaller, TIMEOUT};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The code of a denied request.
const OVER_LIMIT: i32 = 2;

/// The parts of the messages that a load needs.
#[derive(Clone, PartialEq, prost::Message)]
struct LimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<LimitDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<DescriptorEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DescriptorEntry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LimitResponse {
    #[prost(int32, tag = "1")]
    overall_code: i32,
}

pub(super) struct GrpcCaller {
    runtime: tokio::runtime::Runtime,
    client: Grpc<Channel>,
    domain: String,
}

impl GrpcCaller {
    pub(super) fn connect(address: &str, domain: &str) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?
            .connect_timeout(TIMEOUT)
            .timeout(TIMEOUT);
        let channel = runtime.block_on(endpoint.connect())?;
        Ok(Self {
            runtime,
            client: Grpc::new(channel),
            domain: domain.to_owned(),
        })
    }
}

impl BenchCaller for GrpcCaller {
    fn call(&mut self, next_key: &mut dyn FnMut() -> u64) -> anyhow::Result<BenchAnswer> {
        let entry = DescriptorEntry {
            key: "key".to_owned(),
            value: format!("bench:{}", next_key()),
        };
        let request = LimitRequest {
            domain: self.domain.clone(),
            descriptors: vec![LimitDescriptor {
                entries: vec![entry],
            }],
        };
        let client = &mut self.client;
        let answer = self.runtime.block_on(async {
            client.ready().await.context("the connection")?;
            let codec = ProstCodec::<LimitRequest, LimitResponse>::default();
            let path = PathAndQuery::from_static(METHOD);
            let response = client
                .unary(tonic::Request::new(request), path, codec)
                .await;
            anyhow::Ok(
                response
                    .map_err(|status| anyhow::anyhow!("{status}"))?
                    .into_inner(),
            )
        })?;
        Ok(BenchAnswer {
            checks: 1,
            denied: u64::from(answer.overall_code == OVER_LIMIT),
        })
    }
}
