//! Connections, whatever is spoken on them: where they come in, how long they may take, and how they end.

mod accept;
mod budget;
mod guarded;
mod listeners;
mod stream;
mod watch;

pub(crate) use accept::{Connections, Counted, Protocol, accept};
pub(crate) use budget::{Budget, Held};
pub(crate) use guarded::{Drains, Guarded};
pub use listeners::Listeners;
pub(crate) use stream::Stream;
pub(crate) use watch::{Times, Watch};
