//! TLS configuration of a listener.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::config::{ConfigError, TlsConfig};
use crate::secrets::Files;

/// Reads the TLS configuration of a listener.
pub(crate) fn read(
    config: &TlsConfig,
    protocols: &[&[u8]],
    files: &mut Files,
) -> Result<Arc<ServerConfig>, ConfigError> {
    let chain = certificates(&config.cert, files)?;
    let key = files
        .read(&config.key)
        .map_err(|cause| error(&config.key, &cause))?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|cause| error(&config.key, &cause))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|cause| error(&config.cert, &cause))?;
    let builder = match &config.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file, files)? {
                roots
                    .add(certificate)
                    .map_err(|cause| error(file, &cause))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder
                .with_client_cert_verifier(verifier.build().map_err(|cause| error(file, &cause))?)
        }
    };
    let mut server = builder.with_single_cert(chain, key).map_err(|cause| {
        error(
            &config.cert,
            &format!(
                "the certificate does not match the key {}: {cause}",
                config.key.display()
            ),
        )
    })?;
    server.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(server))
}

fn certificates(
    file: &Path,
    files: &mut Files,
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let content = files.read(file).map_err(|cause| error(file, &cause))?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content).collect();
    let read = read.map_err(|cause| error(file, &cause))?;
    if read.is_empty() {
        return Err(error(file, &"the file contains no certificate"));
    }
    Ok(read)
}

fn error(file: &Path, cause: &dyn std::fmt::Display) -> ConfigError {
    ConfigError::Values(format!("{}: {cause}", file.display()))
}
