//! Responses of [`Limits::on_denied`](crate::Limits::on_denied).

use crate::framework::Framework;

/// A value that can be the response to a denied request.
///
/// With `M` = [`Own`] it is the framework's response; with the feature `axum` it is anything that is
/// `IntoResponse`. The compiler infers `M`.
pub trait IntoDenialResponse<F: Framework, M> {
    /// Returns the response.
    fn into_denial_response(self) -> F::Response;
}

/// Marks the response type of a framework.
#[derive(Debug)]
pub enum Own {}

impl<F: Framework, R: Into<F::Response>> IntoDenialResponse<F, Own> for R {
    fn into_denial_response(self) -> F::Response {
        self.into()
    }
}

/// Marks responses by way of axum.
#[cfg(feature = "axum")]
#[derive(Debug)]
pub enum ViaAxum {}

/// A response that can be created from one of axum's.
#[cfg(feature = "axum")]
pub trait FromAxum {
    /// Converts a response.
    fn from_axum(response: axum_core::response::Response) -> Self;
}

#[cfg(feature = "axum")]
impl<F, R> IntoDenialResponse<F, ViaAxum> for R
where
    F: Framework<Response: FromAxum>,
    R: axum_core::response::IntoResponse,
{
    fn into_denial_response(self) -> F::Response {
        F::Response::from_axum(self.into_response())
    }
}
