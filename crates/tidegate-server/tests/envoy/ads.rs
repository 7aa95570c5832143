//! A management server: sends rules over the aggregated discovery service, and records the
//! answers.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures_util::{Stream, stream};
use prost::Message;
use prost_types::Any;
use tidegate_server::proto::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use tidegate_server::proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use tidegate_server::proto::ratelimit::config::ratelimit::v3::RateLimitConfig;
use tidegate_testkit::redis::wait_for;
use tokio::sync::watch;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use crate::common::TIMEOUT;

pub(crate) const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Ends with the test, and its connections with it.
pub(crate) struct AdsServer {
    pub(crate) address: SocketAddr,
    service: AdsService,
    runtime: Option<tokio::runtime::Runtime>,
}

#[derive(Clone)]
struct AdsService {
    current: Arc<watch::Sender<Option<DiscoveryResponse>>>,
    requests: Arc<Mutex<Vec<DiscoveryRequest>>>,
}

impl AdsServer {
    pub(crate) fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), None)
    }

    pub(crate) fn start_at(address: SocketAddr, tls: Option<ServerTlsConfig>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind(address))
            .unwrap();
        let address = listener.local_addr().unwrap();
        let service = AdsService {
            current: Arc::new(watch::Sender::new(None)),
            requests: Arc::default(),
        };
        let served = AggregatedDiscoveryServiceServer::new(service.clone());
        let mut builder = Server::builder();
        if let Some(tls) = tls {
            builder = builder.tls_config(tls).unwrap();
        }
        let serving = builder.add_service(served);
        runtime.spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));
        Self {
            address,
            service,
            runtime: Some(runtime),
        }
    }

    /// Sends resources to every client, now and when it connects. The nonce is the version.
    pub(crate) fn send(&self, version: &str, resources: Vec<Any>) {
        self.send_as(version, TYPE, resources);
    }

    /// Like [`Self::send`], with another type.
    pub(crate) fn send_as(&self, version: &str, type_url: &str, resources: Vec<Any>) {
        self.service.current.send_replace(Some(DiscoveryResponse {
            version_info: version.to_owned(),
            resources,
            type_url: type_url.to_owned(),
            nonce: version.to_owned(),
        }));
    }

    /// Sends configurations, and waits until they are in use.
    pub(crate) fn send_good(&self, version: &str, configs: &[RateLimitConfig]) {
        self.send(version, configs.iter().map(resource).collect());
        let answer = self.answer_to(version);
        assert_eq!(answer.error_detail, None, "{version}");
        assert_eq!(answer.version_info, version);
    }

    /// Waits for the answer to a version.
    pub(crate) fn answer_to(&self, nonce: &str) -> DiscoveryRequest {
        let mut answer = None;
        let has_answer = || {
            let requests = self.requests();
            answer = requests
                .into_iter()
                .find(|request| request.response_nonce == nonce);
            answer.is_some()
        };
        assert!(wait_for(TIMEOUT, has_answer), "no answer to {nonce}");
        answer.unwrap()
    }

    pub(crate) fn requests(&self) -> Vec<DiscoveryRequest> {
        self.service.requests.lock().unwrap().clone()
    }
}

impl Drop for AdsServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Returns a configuration as a resource.
pub(crate) fn resource(config: &RateLimitConfig) -> Any {
    Any {
        type_url: TYPE.to_owned(),
        value: config.encode_to_vec(),
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for AdsService {
    type StreamAggregatedResourcesStream =
        Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let mut incoming = request.into_inner();
        let requests = Arc::clone(&self.requests);
        tokio::spawn(async move {
            while let Ok(Some(request)) = incoming.message().await {
                requests.lock().unwrap().push(request);
            }
        });
        let mut current = self.current.subscribe();
        current.mark_changed();
        let responses = stream::unfold(current, |mut current| async move {
            loop {
                current.changed().await.ok()?;
                let response = current.borrow_and_update().clone();
                if let Some(response) = response {
                    return Some((Ok(response), current));
                }
            }
        });
        Ok(Response::new(Box::pin(responses)))
    }
}
