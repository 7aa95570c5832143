//! A minimal HTTP/1.1 client that sends exactly the bytes it is given. It has one connection and
//! sends one request at a time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The read and write timeout of a connection. A test fails after it.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A connection to a server.
pub struct HttpClient {
    reader: BufReader<TcpStream>,
}

/// A response.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// The status code.
    pub status: u16,
    /// The header fields, with names in lower case.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl HttpAnswer {
    /// Returns the value of a header field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// Parses the body as JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl HttpClient {
    /// Connects to a server.
    ///
    /// # Errors
    /// Returns an error if the connection is refused.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    /// Sends a POST request and waits for the response.
    ///
    /// # Errors
    /// Returns an error if the connection closes before the response is complete.
    pub fn post(&mut self, path: &str, body: &str) -> io::Result<HttpAnswer> {
        self.post_with(path, "", body)
    }

    /// Like [`post`](Self::post), with additional header fields, each terminated by CR LF.
    ///
    /// # Errors
    /// Returns an error if the connection closes before the response is complete.
    pub fn post_with(&mut self, path: &str, fields: &str, body: &str) -> io::Result<HttpAnswer> {
        let length = body.len();
        self.send(
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{fields}\r\n{body}")
                .as_bytes(),
        )?;
        self.receive()
    }

    /// Sends a GET request and waits for the response.
    ///
    /// # Errors
    /// Returns an error if the connection closes before the response is complete.
    pub fn get(&mut self, path: &str) -> io::Result<HttpAnswer> {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes())?;
        self.receive()
    }

    /// Sends raw bytes.
    ///
    /// # Errors
    /// Returns an error if the connection is closed.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Waits for a response.
    ///
    /// # Errors
    /// Returns an error if the connection closes before the response is complete, or if the
    /// response is invalid.
    pub fn receive(&mut self) -> io::Result<HttpAnswer> {
        let first = self.line()?;
        let status = first
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let status =
            status.ok_or_else(|| io::Error::other(format!("invalid status line: {first:?}")))?;
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

    /// Waits until the server closes the connection or sends data. Returns false if it sends data.
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
