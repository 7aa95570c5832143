//! Clients and servers on real sockets.
#![allow(
    missing_docs,
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used
)] // Not every test uses all.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// A complete response.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A connection that sends one request after the other.
pub struct Connection(SendRequest<Empty<Bytes>>);

impl Connection {
    pub async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    pub async fn send(&mut self, request: Request<Empty<Bytes>>) -> Answer {
        self.0.ready().await.unwrap();
        let response = self.0.send_request(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body,
        }
    }

    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::get(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Empty::new()).unwrap()).await
    }
}

pub async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Serves an axum router until the test ends.
pub async fn serve(router: axum::Router) -> SocketAddr {
    let (listener, address) = listen().await;
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// Sends `each` requests on each of 64 connections and returns the number that pass.
pub async fn passed_of_64_connections(address: SocketAddr, each: usize) -> usize {
    let clients: Vec<_> = (0..64)
        .map(|_| {
            tokio::spawn(async move {
                let mut connection = Connection::open(address).await;
                let mut passed = 0;
                for _ in 0..each {
                    let answer = connection.get("/", &[]).await;
                    let is_denied = answer.status == StatusCode::TOO_MANY_REQUESTS;
                    assert!(is_denied || answer.status == StatusCode::OK, "{answer:?}");
                    assert_eq!(
                        answer.header("retry-after").is_some(),
                        is_denied,
                        "{answer:?}"
                    );
                    assert!(answer.header("ratelimit").is_some(), "{answer:?}");
                    passed += usize::from(!is_denied);
                }
                passed
            })
        })
        .collect();
    let mut passed = 0;
    for client in clients {
        passed += client.await.unwrap();
    }
    passed
}
