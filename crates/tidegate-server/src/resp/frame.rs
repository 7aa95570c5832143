//! Parses commands from bytes: bounded before anything is stored, and without copying.

use smallvec::SmallVec;

/// The maximum number of words in a command.
pub(super) const MAX_WORDS: usize = 16;
/// The maximum length of a word.
pub(super) const MAX_WORD: usize = 8 * 1024;
/// The maximum length of an inline command.
pub(super) const MAX_LINE: usize = 1024;
/// The maximum length of an array's or a bulk string's header: a sign, digits, CR and LF.
const MAX_HEAD: usize = 16;

/// The words of a command. There is at least one, its name.
pub(super) type Words<'a> = SmallVec<[&'a [u8]; 8]>;

/// The start of the bytes that have arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// A command, and its length in bytes.
    Command(Words<'a>, usize),
    /// An empty line, and its length in bytes.
    Nothing(usize),
    /// The start of a command.
    Partial,
    /// An error. The start of the next command is unknown.
    Bad(&'static str),
}

/// Parses the start of the bytes.
pub(super) fn read(bytes: &[u8]) -> Frame<'_> {
    match bytes.first() {
        None => Frame::Partial,
        Some(b'*') => array(bytes),
        Some(_) => line(bytes),
    }
}

/// Parses `*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n`.
fn array(bytes: &[u8]) -> Frame<'_> {
    let (count, mut at) = match head(bytes, 1) {
        Head::Number(count, end) => (count, end),
        Head::Partial => return Frame::Partial,
        Head::Bad => return Frame::Bad("Protocol error: invalid multibulk length"),
    };
    if count <= 0 {
        return Frame::Nothing(at);
    }
    if count > MAX_WORDS as i64 {
        return Frame::Bad("Protocol error: invalid multibulk length, at most 16 words are read");
    }
    let mut words = Words::new();
    for _ in 0..count {
        match bytes.get(at) {
            None => return Frame::Partial,
            Some(b'$') => {}
            Some(_) => return Frame::Bad("Protocol error: expected '$'"),
        }
        let (length, begin) = match head(bytes, at + 1) {
            Head::Number(length, end) => (length, end),
            Head::Partial => return Frame::Partial,
            Head::Bad => return Frame::Bad("Protocol error: invalid bulk length"),
        };
        let Some(length) = usize::try_from(length)
            .ok()
            .filter(|length| *length <= MAX_WORD)
        else {
            return Frame::Bad("Protocol error: invalid bulk length, at most 8192 bytes are read");
        };
        let end = begin + length;
        match bytes.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => {
                return Frame::Bad("Protocol error: expected CRLF after a bulk string");
            }
            None => return Frame::Partial,
        }
        words.push(&bytes[begin..end]);
        at = end + 2;
    }
    Frame::Command(words, at)
}

enum Head {
    /// A number, and the index after it.
    Number(i64, usize),
    Partial,
    Bad,
}

/// Parses a number that ends with CR and LF.
fn head(bytes: &[u8], begin: usize) -> Head {
    let text = bytes.get(begin..).unwrap_or_default();
    let text = &text[..text.len().min(MAX_HEAD)];
    let (sign, digits_at) = if text.first() == Some(&b'-') {
        (-1, 1)
    } else {
        (1, 0)
    };
    let mut number: i64 = 0;
    for (at, byte) in text.iter().enumerate().skip(digits_at) {
        match byte {
            b'0'..=b'9' if at < digits_at + 12 => number = number * 10 + i64::from(byte - b'0'),
            b'\r' if at > digits_at => {
                return match text.get(at + 1) {
                    Some(b'\n') => Head::Number(sign * number, begin + at + 2),
                    Some(_) => Head::Bad,
                    None => Head::Partial,
                };
            }
            _ => return Head::Bad,
        }
    }
    if text.len() < MAX_HEAD {
        Head::Partial
    } else {
        Head::Bad
    }
}

/// Parses `PING\r\n`: words between spaces, in quotes if they contain spaces.
fn line(bytes: &[u8]) -> Frame<'_> {
    let searched = &bytes[..bytes.len().min(MAX_LINE + 2)];
    let Some(end) = searched.iter().position(|byte| *byte == b'\n') else {
        return if searched.len() > MAX_LINE {
            Frame::Bad("Protocol error: too big inline request")
        } else {
            Frame::Partial
        };
    };
    let text = &bytes[..end];
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    match words(text) {
        Some(words) if words.is_empty() => Frame::Nothing(end + 1),
        Some(words) if words.len() <= MAX_WORDS => Frame::Command(words, end + 1),
        Some(_) => Frame::Bad("Protocol error: too many words in an inline request"),
        None => Frame::Bad("Protocol error: unbalanced quotes in request"),
    }
}

fn words(mut text: &[u8]) -> Option<Words<'_>> {
    let mut words = Words::new();
    loop {
        text = text.trim_ascii_start();
        let Some(first) = text.first() else {
            return Some(words);
        };
        let (word, rest) = if let b'"' | b'\'' = first {
            let inner = &text[1..];
            let end = inner.iter().position(|byte| byte == first)?;
            let rest = &inner[end + 1..];
            if rest.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
                return None;
            }
            (&inner[..end], rest)
        } else {
            let end = text
                .iter()
                .position(u8::is_ascii_whitespace)
                .unwrap_or(text.len());
            text.split_at(end)
        };
        words.push(word);
        if words.len() > MAX_WORDS {
            return Some(words);
        }
        text = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(bytes: &[u8]) -> Vec<String> {
        match read(bytes) {
            Frame::Command(words, end) => {
                assert_eq!(end, bytes.len());
                words
                    .iter()
                    .map(|word| String::from_utf8_lossy(word).into_owned())
                    .collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn commands_are_parsed() {
        assert_eq!(command(b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n"), ["ECHO", "hi"]);
        assert_eq!(command(b"*1\r\n$0\r\n\r\n"), [""]);
        assert_eq!(command(b"PING\r\n"), ["PING"]);
        assert_eq!(command(b"  echo  'a b'\t\"c\"\n"), ["echo", "a b", "c"]);
        for nothing in [&b"\r\n"[..], b"\n", b"   \r\n", b"*0\r\n", b"*-1\r\n"] {
            assert_eq!(read(nothing), Frame::Nothing(nothing.len()));
        }
    }

    #[test]
    fn every_prefix_of_a_command_is_partial() {
        let good =
            b"*5\r\n$11\r\nCL.THROTTLE\r\n$7\r\nuser123\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n";
        for end in 0..good.len() {
            assert_eq!(read(&good[..end]), Frame::Partial, "{end}");
        }
        assert!(matches!(read(good), Frame::Command(..)));
    }

    #[test]
    fn malformed_commands_are_rejected_before_they_are_buffered() {
        let bad: [&[u8]; 22] = [
            b"*17\r\n",
            b"*1048577\r\n",
            b"*2147483648\r\n",
            b"*99999999999999999999\r\n",
            b"*99999999999999999999",
            b"*x\r\n",
            b"*\r\n",
            b"*1\r\r\n",
            b"*1\n",
            b"*--1\r\n",
            b"*1\r\n*1\r\n",
            b"*1\r\n:1\r\n",
            b"*1\r\n+OK\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n$-2\r\n",
            b"*1\r\n$8193\r\n",
            b"*1\r\n$536870913\r\n",
            b"*1\r\n$3\r\nPINGX",
            b"*1\r\n$+4\r\nPING\r\n",
            b"*1\r\n%1\r\n",
            b"echo \"a\r\n",
            b"echo \"a\"b\r\n",
        ];
        for bytes in bad {
            assert!(
                matches!(read(bytes), Frame::Bad(_)),
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
        assert!(matches!(read(&[b'x'; MAX_LINE + 2]), Frame::Bad(_)));
        assert_eq!(read(&[b'x'; MAX_LINE]), Frame::Partial);
        assert!(matches!(
            read(&[&b"a ".repeat(17)[..], b"\r\n"].concat()),
            Frame::Bad(_)
        ));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = fastrand::Rng::with_seed(1);
        let alphabet = b"*$:+-\r\n0123456789 PING\"'\0\xff";
        for _ in 0..200_000 {
            let length = random.usize(0..40);
            let bytes: Vec<u8> = (0..length)
                .map(|_| alphabet[random.usize(0..alphabet.len())])
                .collect();
            if let Frame::Command(words, end) = read(&bytes) {
                assert!(end <= bytes.len() && !words.is_empty());
            }
        }
    }
}
