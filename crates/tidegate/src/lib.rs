pub use tidegate_core::*;
