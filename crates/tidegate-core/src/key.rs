//! Who is limited.

/// Who is limited: any bytes, of any length, but not none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a>(&'a [u8]);

/// An empty key, which is most often a mistake of the caller: everybody would share one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key is empty: expected at least one byte")]
pub struct EmptyKey;

impl<'a> Key<'a> {
    /// The key of these bytes.
    ///
    /// # Errors
    /// [`EmptyKey`] if there are none.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Result<Self, EmptyKey> {
        if bytes.is_empty() {
            Err(EmptyKey)
        } else {
            Ok(Self(bytes))
        }
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}
