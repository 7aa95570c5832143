//! One stream to the management server: every response is activated and acknowledged, or rejected
//! with the reason.

use std::sync::Arc;

use futures_util::stream;
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Any, Struct, Value};
use tokio::sync::mpsc;
use tonic::metadata::{MetadataKey, MetadataValue};

use super::connect::connect;
use crate::config::XdsConfig;
use crate::descriptors::{DomainSource, compile, domain_from_xds};
use crate::proto::envoy::config::core::v3::Node;
use crate::proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use crate::proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use crate::proto::google::rpc;
use crate::proto::ratelimit::config::ratelimit::v3::RateLimitConfig;
use crate::server::Server;

/// The type of the resources.
const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// gRPC's code for a rejected configuration.
const INVALID_ARGUMENT: i32 = 3;

/// One connection.
pub(super) struct Session<'a> {
    pub(super) server: &'a Arc<Server>,
    pub(super) config: &'a XdsConfig,
    /// The version in use. It outlives the connection.
    pub(super) version: &'a mut String,
    /// Set once the management server has sent something.
    pub(super) has_answered: bool,
}

impl Session<'_> {
    /// Runs until the stream ends, and returns the reason.
    pub(super) async fn run(&mut self) -> String {
        match self.try_run().await {
            Ok(()) => "the stream ended".to_owned(),
            Err(error) => error,
        }
    }

    async fn try_run(&mut self) -> Result<(), String> {
        let channel = connect(self.config).await?;
        let mut client = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(self.config.max_message_bytes);
        let (requests, mut receiver) = mpsc::channel::<DiscoveryRequest>(4);
        let first = self.request("", None);
        requests
            .try_send(first)
            .map_err(|error| error.to_string())?;
        let outgoing = stream::poll_fn(move |context| receiver.poll_recv(context));
        let mut call = tonic::Request::new(outgoing);
        for (name, value) in &self.config.headers {
            let name = MetadataKey::from_bytes(name.to_ascii_lowercase().as_bytes())
                .map_err(|error| error.to_string())?;
            let value = MetadataValue::try_from(value).map_err(|error| error.to_string())?;
            call.metadata_mut().insert(name, value);
        }
        let described = |status: tonic::Status| format!("{}: {}", status.code(), status.message());
        let answer = client.stream_aggregated_resources(call).await;
        let mut responses = answer.map_err(described)?.into_inner();
        let server = &self.config.server;
        tracing::info!(server, "connected to management server");
        while let Some(response) = responses.message().await.map_err(described)? {
            self.has_answered = true;
            let request = self.handle(response).await;
            if requests.send(request).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Activates a response. Returns its acknowledgement, or its rejection.
    async fn handle(&mut self, response: DiscoveryResponse) -> DiscoveryRequest {
        let DiscoveryResponse {
            version_info,
            resources,
            nonce,
            type_url,
        } = response;
        let server = Arc::clone(self.server);
        let activating = tokio::task::spawn_blocking(move || match type_url.as_str() {
            TYPE => activate(&server, &resources),
            _ => Err(unknown_type(&type_url)),
        });
        let activated = activating
            .await
            .unwrap_or_else(|error| Err(error.to_string()));
        self.server.metrics.reloaded(activated.is_ok());
        match activated {
            Ok(domains) => {
                tracing::info!(version = version_info, domains, "rules updated");
                *self.version = version_info;
                self.request(&nonce, None)
            }
            Err(error) => {
                tracing::error!(
                    version = version_info,
                    error,
                    "rules rejected, keeping the active ones"
                );
                self.request(&nonce, Some(error))
            }
        }
    }

    fn request(&self, nonce: &str, error: Option<String>) -> DiscoveryRequest {
        let fields = self.config.node_metadata.iter().map(|(name, value)| {
            let kind = Kind::StringValue(value.clone());
            (name.clone(), Value { kind: Some(kind) })
        });
        DiscoveryRequest {
            version_info: self.version.clone(),
            node: Some(Node {
                id: self.config.node_id.clone(),
                cluster: self.config.node_id.clone(),
                metadata: Some(Struct {
                    fields: fields.collect(),
                }),
                user_agent_name: "tidegate".to_owned(),
            }),
            resource_names: Vec::new(),
            type_url: TYPE.to_owned(),
            response_nonce: nonce.to_owned(),
            error_detail: error.map(|message| rpc::Status {
                code: INVALID_ARGUMENT,
                message,
            }),
        }
    }
}

/// Compiles all resources and activates them together. Returns the number of domains.
fn activate(server: &Server, resources: &[Any]) -> Result<usize, String> {
    let sources = resources.iter().map(source);
    let sources: Vec<DomainSource> = sources.collect::<Result<_, _>>()?;
    let active = server.active();
    let merges = active.config.envoy.merge_domains;
    let old = server.rules();
    let rules = compile(&sources, merges, &active.gate, old.as_deref())
        .map_err(|error| error.to_string())?;
    let domains = rules.len();
    server.set_rules(rules);
    Ok(domains)
}

fn unknown_type(name: &str) -> String {
    format!("unknown resource type '{name}': expected {TYPE}")
}

fn source(resource: &Any) -> Result<DomainSource, String> {
    if resource.type_url != TYPE {
        return Err(unknown_type(&resource.type_url));
    }
    let config = RateLimitConfig::decode(&*resource.value)
        .map_err(|error| format!("the resource is invalid: {error}"))?;
    domain_from_xds(&config).map_err(|error| error.to_string())
}
