//! Flags about debug pages over xDS, with the names that istioctl has.

use std::path::PathBuf;

use clap::Args;

/// Flags about xDS.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Server over xDS")]
pub(crate) struct XdsArgs {
    /// Address of the xDS port of the control plane. Debug pages are then requested over xDS, as istioctl does; this works with
    /// istiod, too.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "address_flag")]
    pub(crate) xds_address: Option<String>,
    /// Without --xds-address: request the debug pages over xDS at this port of the pods of the control plane, which is forwarded.
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "15012", conflicts_with_all = ["xds_address", "address_flag"])]
    pub(crate) xds_port: Option<u16>,
    /// xDS without TLS and without credentials.
    #[arg(long, conflicts_with_all = ["insecure", "cert_dir", "authority", "token_file", "ca_file"])]
    pub(crate) plaintext: bool,
    /// Do not verify the certificate of the server. A server that is another one receives the token.
    #[arg(long, conflicts_with_all = ["cert_dir", "ca_file"])]
    pub(crate) insecure: bool,
    /// Name in the certificate of the server. Without it: istiod.NAMESPACE.svc.
    #[arg(long, value_name = "NAME")]
    pub(crate) authority: Option<String>,
    /// Directory with root-cert.pem, cert-chain.pem and key.pem for mutual TLS, in place of a token.
    #[arg(long, value_name = "DIR")]
    pub(crate) cert_dir: Option<PathBuf>,
}

impl XdsArgs {
    /// Whether debug pages are requested over xDS.
    pub(crate) fn is_used(&self) -> bool {
        self.xds_address.is_some() || self.xds_port.is_some()
    }

    /// Whether a kubeconfig is read: to find pods, to request a token, or for the roots that verify the server.
    pub(crate) fn needs_cluster(&self, has_token: bool, has_roots: bool) -> bool {
        let has_credentials = self.plaintext || self.cert_dir.is_some() || has_token;
        let has_roots = has_roots || self.plaintext || self.insecure || self.cert_dir.is_some();
        self.xds_port.is_some() || !has_credentials || !has_roots
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::CommandLine;

    #[test]
    fn credentials_that_would_be_ignored_are_refused() {
        let parse = |flags: &str| {
            let line = ["sluicectl", "version", "--xds-address=istiod:15012"].into_iter().chain(flags.split(' '));
            CommandLine::try_parse_from(line).map(drop)
        };
        for flags in ["--cert-dir=certs", "--insecure", "--plaintext", "--ca-file=root.pem --token-file=token"] {
            assert!(parse(flags).is_ok(), "{flags}");
        }
        for flags in ["--cert-dir=certs --insecure", "--ca-file=root.pem --insecure", "--token-file=token --plaintext"]
        {
            assert!(parse(flags).is_err(), "{flags}");
        }
    }

    #[test]
    fn kubeconfig_is_read_for_pods_tokens_and_roots_only() {
        let args = |plaintext, insecure, cert_dir: Option<&str>| XdsArgs {
            xds_address: Some("istiod:15012".to_owned()),
            plaintext,
            insecure,
            cert_dir: cert_dir.map(PathBuf::from),
            ..XdsArgs::default()
        };
        assert!(!args(true, false, None).needs_cluster(false, false));
        assert!(!args(false, false, Some("certs")).needs_cluster(false, false));
        assert!(!args(false, true, None).needs_cluster(true, false));
        assert!(!args(false, false, None).needs_cluster(true, true));
        assert!(args(false, true, None).needs_cluster(false, false), "a token is requested");
        assert!(args(false, false, None).needs_cluster(true, false), "the roots are read");
        assert!(XdsArgs { xds_port: Some(15_012), ..args(true, false, None) }.needs_cluster(false, false));
    }
}
