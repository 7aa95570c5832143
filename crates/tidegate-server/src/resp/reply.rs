//! Replies, written to one buffer.

/// The version of the protocol on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Two,
    Three,
}

/// Replies that have not been sent.
#[derive(Default)]
pub(super) struct Replies {
    pub(super) bytes: Vec<u8>,
}

impl Replies {
    pub(super) fn ok(&mut self) {
        self.bytes.extend_from_slice(b"+OK\r\n");
    }

    /// Writes a fixed text.
    pub(super) fn simple(&mut self, text: &'static str) {
        self.line(b'+', text.as_bytes());
    }

    /// Writes an error. Text from a client stays on one line, and is cut.
    pub(super) fn error(&mut self, text: &str) {
        self.bytes.push(b'-');
        let shown = text
            .chars()
            .take(400)
            .map(|c| if c.is_control() { '?' } else { c });
        let mut buffer = [0; 4];
        shown.for_each(|c| {
            self.bytes
                .extend_from_slice(c.encode_utf8(&mut buffer).as_bytes())
        });
        self.end();
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.bytes.push(b':');
        self.number(number);
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.bytes.push(b'$');
        self.number(bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.end();
    }

    pub(super) fn null(&mut self, version: Version) {
        self.bytes.extend_from_slice(if version == Version::Two {
            b"$-1\r\n"
        } else {
            b"_\r\n"
        });
    }

    /// Writes the header of an array.
    pub(super) fn array(&mut self, count: usize) {
        self.bytes.push(b'*');
        self.number(count);
    }

    /// Writes the header of a map, or of a flat array in RESP2.
    pub(super) fn map(&mut self, version: Version, count: usize) {
        match version {
            Version::Two => self.array(count * 2),
            Version::Three => {
                self.bytes.push(b'%');
                self.number(count);
            }
        }
    }

    /// Writes five integers, the reply of every throttle command.
    #[inline]
    pub(super) fn five(&mut self, numbers: [i64; 5]) {
        self.bytes.extend_from_slice(b"*5\r\n");
        for number in numbers {
            self.integer(number);
        }
    }

    #[inline]
    fn number(&mut self, number: impl itoa::Integer) {
        self.bytes
            .extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self.end();
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.end();
    }

    #[inline]
    fn end(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }
}
