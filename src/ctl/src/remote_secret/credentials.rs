//! ReaderCredentials of a service account.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::{Value, json};
use sluice_install::{Charts, InstallError, READER_ACCOUNT, Write, reader_objects};

use crate::answer_output::list;
use crate::connect::QueryError;
use crate::connect::kubernetes::KubeconfigCluster;
use crate::remote_secret_args::RemoteSecretArgs;

/// The type of a Secret with a token.
const TOKEN_SECRET: &str = "kubernetes.io/service-account-token";
/// The annotation of such a Secret with the name of the service account.
const ACCOUNT_ANNOTATION: &str = "kubernetes.io/service-account.name";
/// How often a new Secret is read until the controller has written its token, and the time between two reads.
const TOKEN_READS: usize = 40;
const TOKEN_READ_INTERVAL: Duration = Duration::from_millis(250);

/// A token, and the roots that the certificate of the API server is verified with. It has no `Debug` form.
pub(super) struct ReaderCredentials {
    pub(super) roots: String,
    pub(super) token: String,
}

/// The credentials of the service account of the flags, which is created where it is missing.
pub(super) async fn read(
    args: &RemoteSecretArgs,
    cluster: &KubeconfigCluster,
) -> Result<ReaderCredentials, QueryError> {
    let account = args.service_account.as_deref().unwrap_or_else(|| args.secret_type.service_account());
    let namespace = &args.namespace;
    ensure_account(args, account, cluster).await?;
    if let Some(duration) = args.token_duration {
        return requested(namespace, account, duration, cluster).await;
    }
    let secret = match &args.secret_name {
        Some(name) => {
            let secret = cluster.find(&format!("/api/v1/namespaces/{namespace}/secrets/{name}")).await?;
            let secret = secret
                .ok_or_else(|| QueryError::NotFound(format!("namespace {namespace:?} has no Secret {name:?}")))?;
            if !is_token_of(&secret, account) {
                let what = format!("Secret {namespace}/{name} has no token of the service account {account}");
                return Err(QueryError::NotFound(format!("{what}: its type or annotation is another one")));
            }
            secret
        }
        None => token_secret(namespace, account, cluster).await?,
    };
    with_token(secret, namespace, cluster).await
}

/// Creates the account with its rights where it is missing.
async fn ensure_account(args: &RemoteSecretArgs, account: &str, cluster: &KubeconfigCluster) -> Result<(), QueryError> {
    let namespace = &args.namespace;
    if cluster.find(&format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}")).await?.is_some() {
        return Ok(());
    }
    if !args.create_service_account || account != READER_ACCOUNT {
        let hint = format!("only {READER_ACCOUNT} is created, unless --create-service-account=false");
        return Err(QueryError::NotFound(format!(
            "namespace {namespace:?} has no service account {account:?}; install a control plane first; {hint}"
        )));
    }
    let path = "/api/v1/namespaces";
    if cluster.find(&format!("{path}/{namespace}")).await?.is_none() {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        cluster.send(Method::POST, path, &object).await?;
    }
    let failed = |error: InstallError| QueryError::Cluster(error.to_string());
    let capabilities = cluster.target().capabilities().await.map_err(failed)?;
    let charts = Charts::embedded().map_err(failed)?;
    for object in reader_objects(namespace, &charts, &capabilities).map_err(failed)? {
        cluster.target().apply(&object, Write::Stored).await.map_err(failed)?;
    }
    Ok(())
}

fn is_token_of(secret: &Value, account: &str) -> bool {
    secret["type"] == TOKEN_SECRET && secret["metadata"]["annotations"][ACCOUNT_ANNOTATION] == account
}

/// The Secret with the token of the account, which is created where it is missing.
async fn token_secret(namespace: &str, account: &str, cluster: &KubeconfigCluster) -> Result<Value, QueryError> {
    let path = format!("/api/v1/namespaces/{namespace}/secrets");
    let secrets = cluster.read(&path).await?;
    // Items of a list do not state their kind, which nothing needs here.
    if let Some(secret) = list(&secrets, "items").iter().find(|secret| is_token_of(secret, account)) {
        return Ok(secret.clone());
    }
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": TOKEN_SECRET,
        "metadata": {
            "name": format!("{account}-istio-remote-secret-token"),
            "namespace": namespace,
            "annotations": {ACCOUNT_ANNOTATION: account},
        },
    });
    cluster.send(Method::POST, &path, &secret).await
}

/// Waits until the controller has written the token.
async fn with_token(
    mut secret: Value,
    namespace: &str,
    cluster: &KubeconfigCluster,
) -> Result<ReaderCredentials, QueryError> {
    let name = secret["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    for _ in 0..TOKEN_READS {
        if let (Some(roots), Some(token)) = (decoded(&secret, "ca.crt"), decoded(&secret, "token")) {
            return Ok(ReaderCredentials { roots, token });
        }
        tokio::time::sleep(TOKEN_READ_INTERVAL).await;
        secret = cluster.read(&format!("/api/v1/namespaces/{namespace}/secrets/{name}")).await?;
    }
    let missing = if decoded(&secret, "ca.crt").is_none() { "ca.crt" } else { "token" };
    Err(QueryError::Cluster(format!("Secret {namespace}/{name}: no {missing:?} data found")))
}

fn decoded(secret: &Value, key: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(secret["data"][key].as_str()?).ok()?).ok().filter(|text| !text.is_empty())
}

/// A token that the API server issues without a Secret.
async fn requested(
    namespace: &str,
    account: &str,
    duration: Duration,
    cluster: &KubeconfigCluster,
) -> Result<ReaderCredentials, QueryError> {
    let spec = json!({"expirationSeconds": duration.as_secs()});
    let token = cluster.request_token(namespace, account, &spec).await?;
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt");
    let roots = cluster.read(&path).await?["data"]["ca.crt"].as_str().map(str::to_owned);
    let roots = roots.ok_or_else(|| QueryError::Cluster(format!("{path}: no \"ca.crt\" data found")))?;
    Ok(ReaderCredentials { roots, token })
}
