//! What a broker listens on beside its open port: TLS, TLS with a password, and TLS with
//! the certificate of another host.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use postonce::private_postgres::free_port;

use crate::certificates::Authority;

/// The one user whom the broker knows.
pub const USER: &str = "postonce";
/// No other text of a test holds it.
pub const PASSWORD: &str = "correct-horse-battery-staple";

/// Three listeners of a broker, all for 127.0.0.1.
pub struct Secured {
    /// TLS, for anybody.
    pub tls: u16,
    /// TLS, and SCRAM-SHA-512.
    pub login: u16,
    /// TLS with a certificate for `elsewhere.example`.
    pub elsewhere: u16,
    directory: PathBuf,
}

impl Secured {
    pub(crate) fn new(trusted: &Authority, directory: &Path) -> Result<Self> {
        for (name, host) in [("broker.pem", "127.0.0.1"), ("elsewhere.pem", "elsewhere.example")] {
            let identity = trusted.sign(host)?;
            fs::write(directory.join(name), identity.key + &identity.certificate)?;
        }
        let (tls, login, elsewhere) = (free_port()?, free_port()?, free_port()?);
        Ok(Self { tls, login, elsewhere, directory: directory.to_owned() })
    }

    pub(crate) fn listeners(&self) -> String {
        let Self { tls, login, elsewhere, .. } = self;
        format!(",TLS://127.0.0.1:{tls},LOGIN://127.0.0.1:{login},ELSEWHERE://127.0.0.1:{elsewhere}")
    }

    /// A later line wins over an earlier one.
    pub(crate) fn properties(&self) -> String {
        let file = |name: &str| self.directory.join(name).display().to_string();
        format!(
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,LOGIN:SASL_SSL,ELSEWHERE:SSL\n\
             ssl.keystore.type=PEM\n\
             ssl.keystore.location={}\n\
             listener.name.elsewhere.ssl.keystore.type=PEM\n\
             listener.name.elsewhere.ssl.keystore.location={}\n\
             sasl.enabled.mechanisms=SCRAM-SHA-512\n\
             listener.name.login.scram-sha-512.sasl.jaas.config=\
             org.apache.kafka.common.security.scram.ScramLoginModule required;\n",
            file("broker.pem"),
            file("elsewhere.pem")
        )
    }

    pub(crate) fn format_arguments(&self) -> [String; 2] {
        ["--add-scram".to_owned(), format!("SCRAM-SHA-512=[name={USER},password={PASSWORD}]")]
    }
}
