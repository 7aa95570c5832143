//! Tests of Envoy's rate limit service: cases with a gRPC client, a real Envoy, reloads.
// Test helpers panic when they fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod ads;
mod cases;
#[path = "../common/mod.rs"]
mod common;
mod deploy;
mod gateways;
mod gubernator;
mod limitador;
mod listener;
mod metrics;
mod proto;
mod real_envoy;
mod xds;
