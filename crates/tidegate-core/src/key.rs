//! Keys: the client that a limit applies to.

/// The client that a limit applies to: a user, an address, an API key.
///
/// A key is any non-empty byte string, of any length.
///
/// # Examples
///
/// ```
/// use tidegate::Key;
///
/// let key = Key::new(b"user:42")?;
/// assert_eq!(key.as_bytes(), b"user:42");
/// assert!(Key::new(b"").is_err());
/// # Ok::<(), tidegate::EmptyKey>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a>(&'a [u8]);

/// The error for an empty key.
///
/// An empty key is almost always a bug in the caller: all clients would share one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key is empty: expected at least one byte")]
pub struct EmptyKey;

impl<'a> Key<'a> {
    /// Creates a key from bytes.
    ///
    /// # Errors
    ///
    /// Returns [`EmptyKey`] if `bytes` is empty.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Key;
    ///
    /// assert_eq!(Key::new(b"user:42")?.as_bytes(), b"user:42");
    /// assert!(Key::new(b"").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Result<Self, EmptyKey> {
        if bytes.is_empty() {
            Err(EmptyKey)
        } else {
            Ok(Self(bytes))
        }
    }

    /// Returns the key's bytes.
    #[inline]
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}
