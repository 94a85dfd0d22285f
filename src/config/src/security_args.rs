//! The flags of certificates, tokens and TLS, as typed.

use std::path::PathBuf;

use clap::Args;

/// Flags of the certificate authority, of tokens and of TLS.
#[derive(Clone, Debug, Args)]
pub struct SecurityArgs {
    /// Generate a certificate authority in the directory ROOT_CA_DIR (./etc/cacerts) if it has none. Only the owner can read
    /// its files. Only with --configDir. Without this flag, the root of an empty directory is in memory, and is lost when the
    /// process ends. With the Kubernetes API, the root is in Secret `istio-ca-secret`.
    #[arg(
        long = "createCA",
        alias = "create-ca",
        env = "SLUICE_CREATE_CA",
        num_args = 0..=1,
        default_value_t = false,
        default_missing_value = "true",
        require_equals = true,
        action = clap::ArgAction::Set,
        global = true,
        help_heading = "Security"
    )]
    pub create_ca: bool,
    /// File with the JSON web key set for tokens of service accounts; a changed file is read again. ID=FILE sets the keys of
    /// another cluster. Can be repeated. A token needs `sub` `system:serviceaccount:NAMESPACE:NAME`, `exp`, and
    /// an `aud` of TOKEN_AUDIENCES (istio-ca). Only with --configDir: otherwise the Kubernetes API reviews tokens.
    #[arg(
        long = "tokenKeys",
        alias = "token-keys",
        env = "SLUICE_TOKEN_KEYS",
        value_name = "[ID=]FILE",
        value_delimiter = ',',
        global = true,
        help_heading = "Security"
    )]
    pub token_keys: Vec<String>,
    /// Issuer of the tokens of --tokenKeys; empty accepts any issuer with a key.
    #[arg(
        long = "tokenIssuer",
        alias = "token-issuer",
        env = "TOKEN_ISSUER",
        value_name = "ISSUER",
        default_value = "",
        hide_default_value = true,
        global = true,
        help_heading = "Security"
    )]
    pub token_issuer: String,
    /// Certificate chain of the secure port; changed files are read again. Without these three flags, files mounted in
    /// ./var/run/secrets/istiod/tls are used, else a certificate that the authority issues.
    #[arg(
        long = "tlsCertFile",
        alias = "tls-cert-file",
        value_name = "FILE",
        global = true,
        help_heading = "Security"
    )]
    pub tls_cert_file: Option<PathBuf>,
    /// Key of --tlsCertFile.
    #[arg(long = "tlsKeyFile", alias = "tls-key-file", value_name = "FILE", global = true, help_heading = "Security")]
    pub tls_key_file: Option<PathBuf>,
    /// Roots for --tlsCertFile and client certificates.
    #[arg(long = "caCertFile", alias = "ca-cert-file", value_name = "FILE", global = true, help_heading = "Security")]
    pub ca_cert_file: Option<PathBuf>,
    /// Lowest version of TLS: VersionTLS12 or VersionTLS13.
    #[arg(
        long = "tls-min-version",
        value_name = "VERSION",
        default_value = "VersionTLS12",
        global = true,
        help_heading = "Security"
    )]
    pub tls_min_version: String,
    /// Cipher suites of TLS 1.2 by their IANA names; all secure ones by default.
    #[arg(
        long = "tls-cipher-suites",
        value_name = "NAME,..",
        value_delimiter = ',',
        global = true,
        help_heading = "Security"
    )]
    pub tls_cipher_suites: Vec<String>,
}
