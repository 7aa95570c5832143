//! What Tidegate's middleware has in common, whatever the framework: which [`key`] a request has, by which
//! [address](ClientAddress) a client is known, what is [charged](Limits), and what clients are told in
//! [header fields](Dialect) and [problem bodies](Denial).
//!
//! Users meet it through `tidegate-tower` and `tidegate-actix`.

mod address;
mod ask;
mod charge;
mod denial;
mod dialect;
mod error;
mod fields;
mod forwarded;
mod framework;
pub mod key;
mod limits;
mod next;
mod prepared;

pub use address::{ClientAddress, NotANetwork};
pub use charge::{Charge, Open, Settling};
pub use denial::Denial;
pub use dialect::{Dialect, Reset};
pub use error::{LimitsError, RequestError};
pub use fields::{Field, Written, fields, retry_after_seconds};
pub use framework::Framework;
pub use limits::Limits;
pub use next::{Admitted, Next};
pub use prepared::{About, Answer, Prepared};
