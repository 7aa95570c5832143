//! A Redis server with TLS, and certificates created for the test.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{RedisServer, free_port, wait_for};
use crate::folder::new_folder;

/// A certificate authority and a certificate for 127.0.0.1 that it signed.
pub struct TlsFiles {
    folder: PathBuf,
}

impl TlsFiles {
    /// Creates the files with openssl.
    #[must_use]
    pub fn make() -> Self {
        let folder = new_folder();
        let script = "
            openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=tidegate-test-ca
            openssl req -newkey rsa:2048 -nodes -keyout redis.key -out redis.csr -subj /CN=127.0.0.1
            printf 'subjectAltName=IP:127.0.0.1,DNS:localhost' > ext
            openssl x509 -req -in redis.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out redis.crt -days 2 -extfile ext";
        let made = Command::new("sh")
            .args(["-ec", script])
            .current_dir(&folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(
            made.is_ok_and(|status| status.success()),
            "openssl failed to create certificates: is it installed?"
        );
        Self { folder }
    }

    /// Returns the path of a file: `ca.crt`, `redis.crt` or `redis.key`.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Starts a server with a TLS port that requires a client certificate. Returns the server and
    /// that port.
    #[must_use]
    pub fn start_server(&self) -> (RedisServer, u16) {
        let port = free_port();
        let port_text = port.to_string();
        let (ca, certificate, key) = (
            self.path("ca.crt"),
            self.path("redis.crt"),
            self.path("redis.key"),
        );
        let settings = [
            "--tls-port",
            &port_text,
            "--tls-ca-cert-file",
            &ca,
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
        ];
        let server = RedisServer::start_with(&settings);
        let listens = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        assert!(
            wait_for(Duration::from_secs(10), listens),
            "the server does not listen on its TLS port"
        );
        (server, port)
    }
}

impl Drop for TlsFiles {
    fn drop(&mut self) {
        // A failure only leaves the folder behind.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
