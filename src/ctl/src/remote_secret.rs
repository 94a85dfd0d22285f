//! The `create-remote-secret` subcommand (I10): a Secret with credentials by which a control plane reads this cluster.

mod credentials;
mod document;

use std::io::{self, Write};

use credentials::ReaderCredentials;
use document::{RemoteCluster, RemoteUser};
use sluice_parse::is_dns_label;

use crate::answer_output::fail;
use crate::connect::QueryError;
use crate::connect::kubernetes::{KubeconfigCluster, current_thread};
use crate::remote_secret_args::{RemoteAuthType, RemoteSecretArgs};

const EXIT_NOT_FOUND: u8 = 1;

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &RemoteSecretArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let secret = current_thread().and_then(|runtime| runtime.block_on(secret(args)));
    match secret {
        Ok(secret) => {
            if secret.is_local {
                let hint = "a control plane in another cluster does not reach it; pass --server";
                writeln!(errors, "warn: server in Kubeconfig is {}: {hint}", secret.server)?;
            }
            out.write_all(secret.text.as_bytes())?;
            Ok(0)
        }
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

/// The text of a Secret. It has no `Debug` form, because it contains a token.
struct PrintedSecret {
    text: String,
    server: String,
    /// The address of the API server is one of the loopback.
    is_local: bool,
}

async fn secret(args: &RemoteSecretArgs) -> Result<PrintedSecret, QueryError> {
    if !args.name.is_empty() && !is_dns_label(&args.name) {
        return Err(QueryError::Flags(format!("--name {:?} is not a valid DNS 1123 label", args.name)));
    }
    let user = match args.auth_type {
        RemoteAuthType::BearerToken => None,
        RemoteAuthType::Plugin => Some(auth_provider(args)?),
    };
    let cluster = KubeconfigCluster::of(&args.cluster).await?;
    let name = match args.name.as_str() {
        "" => cluster_uid(&cluster).await?,
        name => name.to_owned(),
    };
    let ReaderCredentials { roots, token } = credentials::read(args, &cluster).await?;
    let server = args.server.clone().unwrap_or_else(|| cluster.server().to_owned());
    let remote = RemoteCluster {
        name,
        namespace: args.namespace.clone(),
        secret_type: args.secret_type,
        server: server.clone(),
        tls_server_name: args.tls_server_name.clone(),
        roots,
        user: user.unwrap_or(RemoteUser::Token(token)),
    };
    let text = remote.to_secret_yaml().map_err(QueryError::Invalid)?;
    let is_local = args.server.is_none() && ["127.0.0.1", "localhost"].iter().any(|local| server.contains(local));
    Ok(PrintedSecret { text, server, is_local })
}

/// The auth provider of the flags.
fn auth_provider(args: &RemoteSecretArgs) -> Result<RemoteUser, QueryError> {
    let settings = args.auth_plugin_config.iter().map(|setting| {
        let (name, value) = setting
            .split_once('=')
            .ok_or_else(|| QueryError::Flags(format!("--auth-plugin-config {setting:?}: NAME=VALUE is expected")))?;
        Ok((name.to_owned(), value.into()))
    });
    let name = args.auth_plugin_name.clone().unwrap_or_default();
    Ok(RemoteUser::AuthProvider { name, config: settings.collect::<Result<_, QueryError>>()? })
}

async fn cluster_uid(cluster: &KubeconfigCluster) -> Result<String, QueryError> {
    let namespace = cluster.read("/api/v1/namespaces/kube-system").await?;
    let uid = namespace["metadata"]["uid"].as_str().map(str::to_owned);
    uid.ok_or_else(|| {
        QueryError::Cluster("namespace kube-system has no UID; --name is the name of the cluster".to_owned())
    })
}
