//! The certificate authority: `istio.v1.auth.IstioCertificateService/CreateCertificate`.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message as _;
use sluice_proto::google::protobuf::{Struct, Value, value::Kind};
use sluice_proto::istio::v1::auth::{IstioCertificateRequest, IstioCertificateResponse};
use tonic::{Extensions, Request};

use crate::codec::Raw;
use crate::connection;
use crate::settings::Peer;

/// Time for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What the authority signed, PEM: the leaf first, the root last.
pub(super) type Chain = Vec<String>;

/// Asks for a certificate, on a connection of its own: it is rare, and roots and token may have changed since the last.
///
/// # Errors
/// The authority cannot be reached or verified, refuses, or answers without a chain.
pub(super) async fn sign(peer: &Peer, csr: &str, lifetime: Duration, cert_signer: &str) -> Result<Chain> {
    let signer = Value { kind: Some(Kind::StringValue(cert_signer.to_owned())) };
    let request = IstioCertificateRequest {
        csr: csr.to_owned(),
        validity_duration: i64::try_from(lifetime.as_secs()).context("the lifetime is too long")?,
        metadata: Some(Struct { fields: [("CertSigner".to_owned(), signer)].into() }),
    };
    let metadata = connection::metadata(peer)?;
    let mut client = connection::connect(peer).await?;
    let request = Request::from_parts(metadata, Extensions::default(), Bytes::from(request.encode_to_vec()));
    let path = PathAndQuery::from_static("/istio.v1.auth.IstioCertificateService/CreateCertificate");
    let call = async {
        client.ready().await.context("use the connection")?;
        client.unary(request, path, Raw).await.map_err(|status| {
            // Without what else a status has: metadata of the answer is not ours to log.
            anyhow::anyhow!("{} refused ({:?}): {}", peer.address, status.code(), status.message())
        })
    };
    let Ok(answer) = tokio::time::timeout(TIMEOUT, call).await else {
        bail!("{} did not answer within {TIMEOUT:?}", peer.address);
    };
    let answer = IstioCertificateResponse::decode(answer?.into_inner()).context("read the answer")?;
    ensure!(answer.cert_chain.len() > 1, "{} answered without a chain", peer.address);
    Ok(answer.cert_chain)
}
