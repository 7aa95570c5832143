//! Secrets from files: tokens, certificates and keys.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;

use crate::auth::Tokens;
use crate::config::{Config, ConfigError, TlsConfig};
use crate::tls;

/// The content of the files that a configuration names.
pub(crate) struct Secrets {
    pub(crate) tokens: Tokens,
    pub(crate) http_tls: Option<Arc<ServerConfig>>,
    pub(crate) resp_tls: Option<Arc<ServerConfig>>,
    pub(crate) grpc_tls: Option<Arc<ServerConfig>>,
    pub(crate) admin_tls: Option<Arc<ServerConfig>>,
    /// The digest of the files' content, to detect changes.
    pub(crate) digest: blake3::Hash,
}

impl Secrets {
    /// Reads every file once, so that the digest always belongs to the content in use.
    pub(crate) fn read(config: &Config) -> Result<Self, ConfigError> {
        const HTTP: &[&[u8]] = &[b"h2", b"http/1.1"];
        // Streams of events last longer than a request on HTTP/2 may.
        const ADMIN: &[&[u8]] = &[b"http/1.1", b"h2"];
        let mut files = Files::default();
        let tokens = Tokens::read(config, &mut files)?;
        let mut tls = |config: &Option<TlsConfig>, protocols| {
            config
                .as_ref()
                .map(|config| tls::read(config, protocols, &mut files))
                .transpose()
        };
        Ok(Self {
            tokens,
            http_tls: tls(&config.http.tls, HTTP)?,
            resp_tls: tls(&config.resp.tls, &[])?,
            grpc_tls: tls(&config.grpc.tls, &[b"h2"])?,
            admin_tls: tls(&config.admin.tls, ADMIN)?,
            digest: files.0.finalize(),
        })
    }
}

/// Reads files and computes the digest of their content.
#[derive(Default)]
pub(crate) struct Files(blake3::Hasher);

impl Files {
    pub(crate) fn read(&mut self, path: &Path) -> std::io::Result<Vec<u8>> {
        let content = std::fs::read(path)?;
        self.0
            .update(&(content.len() as u64).to_le_bytes())
            .update(&content);
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use tidegate_testkit::Folder;

    use crate::auth::Access;
    use crate::config::{ConfigSource, Scope};

    /// Otherwise the server would never use a token that changes during a reload.
    #[test]
    fn the_digest_matches_the_tokens_in_use() {
        let folder = Folder::new();
        let (path, new) = (folder.path().join("token"), folder.path().join("new"));
        std::fs::write(&path, "one-token-of-two-there-are").unwrap();
        let text = format!("[[token]]\nscopes = [\"check\"]\nfile = {path:?}\n");
        let file = Some(folder.write("tidegate.toml", &text).into());
        let config = ConfigSource {
            file,
            ..ConfigSource::default()
        }
        .load()
        .unwrap();
        let is_over = AtomicBool::new(false);
        let mut tokens = HashMap::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for token in ["one-token-of-two-there-are", "two-token-of-two-there-are"]
                    .into_iter()
                    .cycle()
                {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    std::fs::write(&new, token).unwrap();
                    std::fs::rename(&new, &path).unwrap();
                }
            });
            for _ in 0..2_000 {
                let secrets = Secrets::read(&config).unwrap();
                let is_one = secrets
                    .tokens
                    .access(Some(b"one-token-of-two-there-are"), Scope::Check)
                    == Access::Granted;
                assert_eq!(*tokens.entry(secrets.digest).or_insert(is_one), is_one);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
