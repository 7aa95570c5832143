//! Tests of a server on free ports, with real and hostile clients. They form one program, because
//! each program takes long to build.
// Test helpers panic when they fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod bad_http;
mod bad_resp;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod docs;
mod timeouts;
mod vectors;
