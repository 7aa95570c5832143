//! A client for HTTP/1.1 that does what it is told, byte for byte: one connection, one request after the other.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a test waits for an answer before it fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection to a server.
pub struct HttpClient {
    reader: BufReader<TcpStream>,
}

/// What a server answered.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// Its status.
    pub status: u16,
    /// Its header fields, names in lower case.
    pub fields: Vec<(String, String)>,
    /// Its body.
    pub body: String,
}

impl HttpAnswer {
    /// A header field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl HttpClient {
    /// Connects.
    ///
    /// # Errors
    /// If nobody listens.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    /// Sends a body, and waits for the answer.
    ///
    /// # Errors
    /// If the connection ends before.
    pub fn post(&mut self, path: &str, body: &str) -> io::Result<HttpAnswer> {
        self.post_with(path, "", body)
    }

    /// The same with header fields of one's own, each ended by CR and LF.
    ///
    /// # Errors
    /// If the connection ends before.
    pub fn post_with(&mut self, path: &str, fields: &str, body: &str) -> io::Result<HttpAnswer> {
        let length = body.len();
        self.send(
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{fields}\r\n{body}")
                .as_bytes(),
        )?;
        self.receive()
    }

    /// Asks for what there is at a path.
    ///
    /// # Errors
    /// If the connection ends before.
    pub fn get(&mut self, path: &str) -> io::Result<HttpAnswer> {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes())?;
        self.receive()
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// If the connection ends before, or it is not an answer.
    pub fn receive(&mut self) -> io::Result<HttpAnswer> {
        let first = self.line()?;
        let status = first
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("not an answer: {first:?}")))?;
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':') {
                fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
        if status == 100 {
            return self.receive();
        }
        let length = fields
            .iter()
            .find(|(name, _)| name == "content-length")
            .and_then(|(_, value)| value.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        self.reader.read_exact(&mut body)?;
        let body = String::from_utf8(body).map_err(io::Error::other)?;
        Ok(HttpAnswer {
            status,
            fields,
            body,
        })
    }

    /// Whether the server has ended the connection: waits for it.
    #[must_use]
    pub fn is_ended(&mut self) -> bool {
        matches!(self.reader.fill_buf(), Ok([]) | Err(_))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}
