//! Client of the certificate authority: `istio.v1.auth.IstioCertificateService/CreateCertificate`.

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
use crate::settings::Upstream;

/// Time limit of a signing request.
const SIGN_TIMEOUT: Duration = Duration::from_secs(10);

/// A certificate chain in PEM: the leaf first, the root last.
pub(super) type Chain = Vec<String>;

/// Requests a certificate. Each request opens a connection, because requests are rare, and roots and token change between
/// them.
///
/// # Errors
/// The authority cannot be reached or verified, rejects the request, or responds without a chain.
pub(super) async fn sign(upstream: &Upstream, csr: &str, lifetime: Duration, cert_signer: &str) -> Result<Chain> {
    let signer = Value { kind: Some(Kind::StringValue(cert_signer.to_owned())) };
    let request = IstioCertificateRequest {
        csr: csr.to_owned(),
        validity_duration: i64::try_from(lifetime.as_secs()).context("the lifetime is too long")?,
        metadata: Some(Struct { fields: [("CertSigner".to_owned(), signer)].into() }),
    };
    let metadata = connection::metadata(upstream)?;
    let mut client = connection::connect(upstream).await?;
    let request = Request::from_parts(metadata, Extensions::default(), Bytes::from(request.encode_to_vec()));
    let path = PathAndQuery::from_static("/istio.v1.auth.IstioCertificateService/CreateCertificate");
    let call = async {
        client.ready().await.context("wait for the connection")?;
        client.unary(request, path, Raw).await.map_err(|status| {
            // Code and message only: the metadata of the response is not for the log.
            anyhow::anyhow!("{} rejected the request ({:?}): {}", upstream.address, status.code(), status.message())
        })
    };
    let Ok(response) = tokio::time::timeout(SIGN_TIMEOUT, call).await else {
        bail!("{} did not respond within {SIGN_TIMEOUT:?}", upstream.address);
    };
    let response = IstioCertificateResponse::decode(response?.into_inner()).context("decode the response")?;
    ensure!(response.cert_chain.len() > 1, "the response of {} contains no chain", upstream.address);
    Ok(response.cert_chain)
}
