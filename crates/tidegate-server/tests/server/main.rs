//! A server on free ports, asked by everybody. One program, since each takes its time to build.
// Helpers of a test fail by a panic, too.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod bad_http;
mod bad_resp;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod docs;
mod patience;
mod vectors;
