//! Keys: the client that a limit applies to.
//!
//! [`Key`] is the form that stores see, [`KeyBuf`] the form that callers give. `subject` converts
//! one to the other.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use crate::subject::TENANT;

/// The client that a limit applies to: a user, an address, an API key.
///
/// A key is any non-empty byte string, of any length. This is the form that a
/// [`Store`](crate::Store) sees; callers give any type that is [`IntoKey`].
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

/// The bytes of a number or an address fit in this many.
const INLINE: usize = 40;

/// The bytes of joined parts.
#[doc(hidden)] // In the signature of a hidden method.
#[allow(unreachable_pub)]
pub type PartBytes = SmallVec<[u8; 32]>;

/// A key as a caller gives it: text, bytes, a number, an address, or several parts.
///
/// It is created by [`IntoKey`]. A key of several parts never equals one of text or bytes.
///
/// # Examples
///
/// ```
/// use tidegate::{IntoKey, KeyBuf};
///
/// assert_eq!(42.into_key(), KeyBuf::from("42"));
/// assert_ne!(("a", "b").into_key(), KeyBuf::from("a:b"));
/// assert_ne!(("a:b", "c").into_key(), ("a", "b:c").into_key());
/// ```
#[derive(Clone, Debug)]
pub struct KeyBuf<'a>(Form<'a>);

#[derive(Clone, Debug)]
enum Form<'a> {
    Borrowed(&'a [u8]),
    Inline(ArrayVec<u8, INLINE>),
    Owned(Vec<u8>),
    /// Parts joined by [`push_part`].
    Parts(PartBytes),
    BorrowedParts(&'a [u8]),
}

impl<'a> KeyBuf<'a> {
    /// Returns the bytes: the text itself, or the encoded parts.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Form::Borrowed(bytes) | Form::BorrowedParts(bytes) => bytes,
            Form::Inline(bytes) => bytes,
            Form::Owned(bytes) => bytes,
            Form::Parts(bytes) => bytes,
        }
    }

    /// Returns a borrowed key that is stored unchanged, see [`subject`](crate::subject).
    #[inline(always)]
    pub(crate) fn plain_borrowed(&self) -> Option<Key<'a>> {
        match self.0 {
            Form::Borrowed(bytes @ [first, ..]) if *first != TENANT => Key::new(bytes).ok(),
            _ => None,
        }
    }

    /// Returns `true` if the key consists of several parts.
    #[inline]
    #[must_use]
    pub fn is_composite(&self) -> bool {
        matches!(self.0, Form::Parts(_) | Form::BorrowedParts(_))
    }

    /// Returns `true` if the bytes are borrowed and are not parts.
    #[inline]
    pub(crate) fn is_borrowed(&self) -> bool {
        matches!(self.0, Form::Borrowed(_))
    }

    /// Returns the bytes if they are borrowed and are not parts.
    #[inline]
    pub(crate) fn into_borrowed(self) -> Option<&'a [u8]> {
        match self.0 {
            Form::Borrowed(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the same key, borrowed from this one.
    #[must_use]
    pub fn borrowed(&self) -> KeyBuf<'_> {
        KeyBuf(if self.is_composite() {
            Form::BorrowedParts(self.as_bytes())
        } else {
            Form::Borrowed(self.as_bytes())
        })
    }

    /// Returns the same key with its own bytes.
    #[must_use]
    pub fn into_owned(self) -> KeyBuf<'static> {
        KeyBuf(match self.0 {
            Form::Borrowed(bytes) => Form::Owned(bytes.to_vec()),
            Form::BorrowedParts(bytes) => Form::Parts(SmallVec::from_slice(bytes)),
            Form::Inline(bytes) => Form::Inline(bytes),
            Form::Owned(bytes) => Form::Owned(bytes),
            Form::Parts(bytes) => Form::Parts(bytes),
        })
    }

    /// Creates a key from the bytes of one that consists of several parts.
    #[doc(hidden)] // For Tidegate's own receipts.
    #[must_use]
    pub fn of_encoded_parts(bytes: &'a [u8]) -> Self {
        Self(Form::BorrowedParts(bytes))
    }

    /// Creates a key of several parts. An empty list is an empty key.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{IntoKey, KeyBuf};
    ///
    /// let parts = vec!["acme".to_owned(), "user:42".to_owned()];
    /// assert_eq!(KeyBuf::from_parts(&parts), ("acme", "user:42").into_key());
    /// ```
    pub fn from_parts<P: KeyPart>(parts: impl IntoIterator<Item = P>) -> KeyBuf<'static> {
        let mut bytes = SmallVec::new();
        for (index, part) in parts.into_iter().enumerate() {
            if index > 0 {
                bytes.push(b':');
            }
            part.push_to(&mut bytes);
        }
        KeyBuf(Form::Parts(bytes))
    }

    fn inline(text: impl std::fmt::Display) -> KeyBuf<'static> {
        let mut bytes = ArrayVec::<u8, INLINE>::new();
        // A number has at most 40 characters, an address 39, so writing does not fail.
        let _ = write!(InlineWriter(&mut bytes), "{text}");
        KeyBuf(Form::Inline(bytes))
    }
}

impl PartialEq for KeyBuf<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.is_composite() == other.is_composite() && self.as_bytes() == other.as_bytes()
    }
}

impl Eq for KeyBuf<'_> {}

impl<'a> From<&'a [u8]> for KeyBuf<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self(Form::Borrowed(bytes))
    }
}

impl<'a> From<&'a str> for KeyBuf<'a> {
    #[inline]
    fn from(text: &'a str) -> Self {
        Self(Form::Borrowed(text.as_bytes()))
    }
}

struct InlineWriter<'a>(&'a mut ArrayVec<u8, INLINE>);

impl std::fmt::Write for InlineWriter<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0
            .try_extend_from_slice(text.as_bytes())
            .map_err(|_| std::fmt::Error)
    }
}

/// A value that can be a key: text, bytes, an integer, an address, or a tuple, array or slice of
/// parts.
///
/// - Integers and addresses are their text: `42` and `"42"` are the same key.
/// - Parts are encoded so that no two lists of parts collide, and none collides with a text.
///
/// # Examples
///
/// ```
/// use std::net::IpAddr;
/// use tidegate::Limiter;
///
/// let limiter = Limiter::memory("fixed_window 5/hour".parse()?);
/// limiter.check("user:42").now()?.or_deny()?;
/// limiter.check(42).now()?.or_deny()?;
/// limiter.check("192.0.2.7".parse::<IpAddr>()?).now()?.or_deny()?;
/// limiter.check(("acme", 42)).now()?.or_deny()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    note = "expected text, bytes, an integer, an IP address, or a tuple or slice of them"
)]
pub trait IntoKey<'a> {
    /// Returns the key.
    fn into_key(self) -> KeyBuf<'a>;
}

/// A type whose references are keys.
///
/// # Examples
///
/// ```
/// use tidegate::{AsKey, KeyBuf};
///
/// struct UserId(u64);
///
/// impl AsKey for UserId {
///     fn as_key(&self) -> KeyBuf<'_> {
///         self.0.as_key()
///     }
/// }
///
/// let limiter = tidegate::Limiter::memory("5/minute".parse()?);
/// limiter.check(&UserId(42)).now()?.or_deny()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`&{Self}` is not a key",
    note = "expected text, bytes, an integer, an IP address, or a tuple or slice of them"
)]
pub trait AsKey {
    /// Returns the key.
    fn as_key(&self) -> KeyBuf<'_>;
}

impl<'a, K: AsKey + ?Sized> IntoKey<'a> for &'a K {
    #[inline]
    fn into_key(self) -> KeyBuf<'a> {
        self.as_key()
    }
}

impl<'a> IntoKey<'a> for KeyBuf<'a> {
    #[inline]
    fn into_key(self) -> Self {
        self
    }
}

impl AsKey for KeyBuf<'_> {
    #[inline]
    fn as_key(&self) -> KeyBuf<'_> {
        self.borrowed()
    }
}

impl<K: AsKey + ?Sized> AsKey for &K {
    #[inline]
    fn as_key(&self) -> KeyBuf<'_> {
        (**self).as_key()
    }
}

/// Keys of bytes: `AsRef<[u8]>`, borrowed.
macro_rules! bytes_are_keys {
    ($($type:ty),*) => {$(
        impl AsKey for $type {
            #[inline]
            fn as_key(&self) -> KeyBuf<'_> {
                KeyBuf(Form::Borrowed(self.as_ref()))
            }
        }
    )*};
}

bytes_are_keys!([u8], Vec<u8>, Box<[u8]>, Arc<[u8]>, Rc<[u8]>);

/// Keys of text.
macro_rules! texts_are_keys {
    ($($type:ty),*) => {$(
        impl AsKey for $type {
            #[inline]
            fn as_key(&self) -> KeyBuf<'_> {
                let text: &str = self.as_ref();
                KeyBuf(Form::Borrowed(text.as_bytes()))
            }
        }
    )*};
}

texts_are_keys!(str, String, Box<str>, Arc<str>, Rc<str>, Cow<'_, str>);

impl<const N: usize> AsKey for [u8; N] {
    #[inline]
    fn as_key(&self) -> KeyBuf<'_> {
        KeyBuf(Form::Borrowed(self))
    }
}

impl<'a> IntoKey<'a> for String {
    fn into_key(self) -> KeyBuf<'a> {
        KeyBuf(Form::Owned(self.into_bytes()))
    }
}

impl<'a> IntoKey<'a> for Vec<u8> {
    fn into_key(self) -> KeyBuf<'a> {
        KeyBuf(Form::Owned(self))
    }
}

impl<'a> IntoKey<'a> for Cow<'a, str> {
    fn into_key(self) -> KeyBuf<'a> {
        match self {
            Cow::Borrowed(text) => text.into(),
            Cow::Owned(text) => text.into_key(),
        }
    }
}

/// Keys of short text: numbers and addresses.
macro_rules! displays_are_keys {
    ($($type:ty),*) => {$(
        impl AsKey for $type {
            fn as_key(&self) -> KeyBuf<'_> {
                KeyBuf::inline(self)
            }
        }

        impl<'a> IntoKey<'a> for $type {
            fn into_key(self) -> KeyBuf<'a> {
                KeyBuf::inline(self)
            }
        }

        impl KeyPart for $type {
            fn push_to(&self, key: &mut PartBytes) {
                push_part(key, KeyBuf::inline(self).as_bytes());
            }
        }
    )*};
}

// Not `u8`, so that a slice of bytes is not a slice of parts.
displays_are_keys!(
    u16, u32, u64, u128, usize, i16, i32, i64, i128, isize, IpAddr, Ipv4Addr, Ipv6Addr
);

/// A part of a key of several parts: text, bytes, an integer or an address.
///
/// # Examples
///
/// ```
/// use tidegate::IntoKey;
///
/// assert_eq!(("acme", 42).into_key().as_bytes(), b"acme:42");
/// assert_eq!(["a:b", "100%"].as_slice().into_key().as_bytes(), b"a%3Ab:100%25");
/// ```
pub trait KeyPart {
    /// Appends the part. A `:` or `%` in it is escaped, so that no two lists of parts collide.
    #[doc(hidden)] // Called by the implementations of `AsKey`.
    fn push_to(&self, key: &mut PartBytes);
}

fn push_part(key: &mut PartBytes, part: &[u8]) {
    for byte in part {
        match byte {
            b':' => key.extend_from_slice(b"%3A"),
            b'%' => key.extend_from_slice(b"%25"),
            other => key.push(*other),
        }
    }
}

impl<P: KeyPart + ?Sized> KeyPart for &P {
    fn push_to(&self, key: &mut PartBytes) {
        (**self).push_to(key);
    }
}

macro_rules! bytes_are_parts {
    ($($type:ty),*) => {$(
        impl KeyPart for $type {
            fn push_to(&self, key: &mut PartBytes) {
                push_part(key, self.as_key().as_bytes());
            }
        }
    )*};
}

bytes_are_parts!(
    str,
    String,
    Box<str>,
    Arc<str>,
    Rc<str>,
    Cow<'_, str>,
    [u8],
    Vec<u8>,
    Box<[u8]>,
    Arc<[u8]>,
    Rc<[u8]>
);

impl<P: KeyPart> AsKey for [P] {
    fn as_key(&self) -> KeyBuf<'_> {
        KeyBuf::from_parts(self)
    }
}

impl<P: KeyPart> AsKey for Vec<P> {
    fn as_key(&self) -> KeyBuf<'_> {
        KeyBuf::from_parts(self)
    }
}

impl<P: KeyPart, const N: usize> AsKey for [P; N] {
    fn as_key(&self) -> KeyBuf<'_> {
        KeyBuf::from_parts(self)
    }
}

impl<'a, P: KeyPart, const N: usize> IntoKey<'a> for [P; N] {
    fn into_key(self) -> KeyBuf<'a> {
        KeyBuf::from_parts(self)
    }
}

macro_rules! tuples_are_keys {
    ($(($first:ident $(, $part:ident)*)),*) => {$(
        #[allow(non_snake_case)]
        impl<$first: KeyPart $(, $part: KeyPart)*> AsKey for ($first, $($part,)*) {
            fn as_key(&self) -> KeyBuf<'_> {
                let ($first, $($part,)*) = self;
                let mut key = SmallVec::new();
                $first.push_to(&mut key);
                $(
                    key.push(b':');
                    $part.push_to(&mut key);
                )*
                KeyBuf(Form::Parts(key))
            }
        }

        impl<'a, $first: KeyPart $(, $part: KeyPart)*> IntoKey<'a> for ($first, $($part,)*) {
            fn into_key(self) -> KeyBuf<'a> {
                self.as_key().into_owned()
            }
        }
    )*};
}

tuples_are_keys!((A), (A, B), (A, B, C), (A, B, C, D), (A, B, C, D, E));

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn parts_never_collide_with_each_other_or_with_text() {
        let texts = [
            "a", "a:b", "a%3Ab", "a:b:c", ":", "", "%3A", "%", "1", "@a", "@%:a",
        ];
        let mut seen = HashSet::new();
        let mut insert = |key: KeyBuf<'_>| {
            let form = (key.is_composite(), key.as_bytes().to_vec());
            assert!(seen.insert(form.clone()), "{form:?}");
        };
        for one in texts {
            insert(one.into_key());
            insert([one].into_key());
            for two in texts {
                insert((one, two).into_key());
                for three in texts {
                    insert([one, two, three].as_slice().into_key());
                }
            }
        }
    }

    #[test]
    fn numbers_and_addresses_are_their_text() {
        let texts = [
            (u128::MAX.into_key(), u128::MAX.to_string()),
            (i128::MIN.into_key(), i128::MIN.to_string()),
            ((-7).into_key(), "-7".to_owned()),
            (
                "2001:db8:ffff:ffff:ffff:ffff:255.255.255.255"
                    .parse::<IpAddr>()
                    .unwrap()
                    .into_key(),
                "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff".to_owned(),
            ),
        ];
        for (key, text) in texts {
            assert_eq!(key.as_bytes(), text.as_bytes());
        }
        assert_eq!((1u64, "x").into_key(), ("1", "x").into_key());
        assert_eq!(vec!["a".to_owned()].as_key(), ["a"].into_key());
        assert!(KeyBuf::from_parts(Vec::<&str>::new()).as_bytes().is_empty());
    }
}
