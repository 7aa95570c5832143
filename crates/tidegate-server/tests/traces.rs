//! Spans reach a collector, with the caller's trace and without a key.
// Test helpers panic when they fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use common::{TestServer, config};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_server::config::LogConfig;
use tidegate_server::log;
use tidegate_testkit::redis::wait_for;

type Received = Arc<Mutex<Vec<u8>>>;

/// Accepts every export and replies with success.
async fn collect(listener: tokio::net::TcpListener, received: Received) {
    while let Ok((stream, _)) = listener.accept().await {
        let received = Arc::clone(&received);
        let service = service_fn(move |request: http::Request<Incoming>| {
            let received = Arc::clone(&received);
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(
                    path,
                    "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
                );
                received.lock().unwrap().extend_from_slice(&body);
                let response = http::Response::builder()
                    .header("content-type", "application/grpc")
                    .header("grpc-status", "0")
                    .body(Full::new(Bytes::from_static(&[0; 5])));
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        tokio::spawn(
            http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

#[test]
fn spans_carry_the_path_and_the_trace_but_no_key() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let received = Received::default();
    let logging = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(collect(listener, Arc::clone(&received)));
        log::start(&LogConfig {
            otlp: Some(endpoint),
            ..LogConfig::default()
        })
        .unwrap()
    });
    let server = TestServer::start(config("[policies.api]\nlimits = \"5/minute\"\n"));
    let traceparent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    let body = r#"{"policy": "api", "key": "user-secret"}"#;
    assert_eq!(
        server
            .client()
            .post_with("/v1/check", traceparent, body)
            .unwrap()
            .status,
        200
    );
    server.resp().expect(b"PING\r\n", "+PONG\r\n");
    drop(server);
    // The remaining spans are sent when logging shuts down.
    std::thread::spawn(move || drop(logging)).join().unwrap();
    let trace = [
        0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31,
        0x9c,
    ];
    let contains = |part: &[u8]| {
        received
            .lock()
            .unwrap()
            .windows(part.len())
            .any(|window| window == part)
    };
    let is_complete = || contains(b"/v1/check") && contains(b"pipeline") && contains(&trace);
    assert!(
        wait_for(common::TIMEOUT, is_complete),
        "{}",
        String::from_utf8_lossy(&received.lock().unwrap())
    );
    assert!(!contains(b"secret"));
}
