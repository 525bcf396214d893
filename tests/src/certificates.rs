//! Certificates for servers that are reached over TLS, made when a test needs them.

use std::path::Path;

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

/// Somebody who signs certificates, and in whom clients trust or not.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// What a server shows, and its secret; both in PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::new([])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// For a server of this name or address.
    pub fn sign(&self, host: &str) -> Result<Identity> {
        let mut params = CertificateParams::new([host.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, host);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// What a client is given to trust in.
    pub fn write(&self, path: &Path) -> Result<()> {
        Ok(std::fs::write(path, self.0.pem())?)
    }
}
