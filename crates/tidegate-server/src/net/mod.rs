//! Connections of any protocol: accepting, timeouts, budgets and closing.

mod accept;
mod budget;
mod listeners;
mod stream;
mod timed_connection;
mod timeouts;

pub(crate) use accept::{Connections, PanicCounter, ProtocolHandler, accept, accept_unix};
pub(crate) use budget::{ByteBudget, Reservation};
pub use listeners::Listeners;
pub(crate) use listeners::UnixSocket;
pub(crate) use stream::Stream;
pub(crate) use timed_connection::{Drain, TimedConnection};
pub(crate) use timeouts::{TimeoutSettings, Timeouts};
