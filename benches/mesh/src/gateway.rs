//! The gateways of the mesh: their objects and their identity.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::shape::Service;

/// Namespace of the gateways.
pub(crate) const NAMESPACE: &str = "bench-gateways";
/// Their name, label and service account.
pub(crate) const NAME: &str = "bench-gateway";
/// The forwarded certificate of a gateway, as a trusted peer sends it.
pub(crate) const CERTIFICATE: &str = "By=spiffe://cluster.local/ns/istio-system/sa/istiod;\
                                      URI=spiffe://cluster.local/ns/bench-gateways/sa/bench-gateway";
/// Name of the gateways' secret in SDS.
pub(crate) const SECRET: &str = "kubernetes://bench-certificate";

pub(crate) fn address(number: usize) -> String {
    format!("172.30.{}.{}", number / 250 % 250, number % 250 + 1)
}

/// Everything except the secret: pods, a Gateway for HTTP and HTTPS, and routes to some services.
pub(crate) fn objects(count: usize, services: &[Service]) -> String {
    let mut text = format!(
        "apiVersion: v1
kind: Namespace
metadata: {{name: {NAMESPACE}}}
---
apiVersion: v1
kind: Service
metadata: {{name: {NAME}, namespace: {NAMESPACE}, creationTimestamp: 2026-01-01T00:00:00Z}}
spec:
  type: ClusterIP
  clusterIP: 10.255.0.1
  clusterIPs: [10.255.0.1]
  selector: {{istio: {NAME}}}
  ports: [{{name: http, port: 80, targetPort: 8080}}, {{name: https, port: 443, targetPort: 8443}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: {NAME}-1
  namespace: {NAMESPACE}
  labels: {{kubernetes.io/service-name: {NAME}}}
addressType: IPv4
ports: [{{name: http, port: 8080, protocol: TCP}}, {{name: https, port: 8443, protocol: TCP}}]
endpoints:
"
    );
    for number in 0..count {
        let _ = writeln!(
            text,
            "- {{addresses: [{}], conditions: {{ready: true, serving: true, terminating: false}}, nodeName: node-0, \
             targetRef: {{kind: Pod, name: {NAME}-{number}, namespace: {NAMESPACE}}}}}",
            address(number),
        );
    }
    for number in 0..count {
        let address = address(number);
        let _ = write!(
            text,
            "---
apiVersion: v1
kind: Pod
metadata: {{name: {NAME}-{number}, namespace: {NAMESPACE}, labels: {{istio: {NAME}}}}}
spec: {{serviceAccountName: {NAME}, nodeName: node-0, containers: [{{name: istio-proxy, image: proxyv2}}]}}
status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}
"
        );
    }
    let _ = write!(
        text,
        "---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: {NAME}, namespace: {NAMESPACE}, creationTimestamp: 2026-01-01T00:00:00Z}}
spec:
  selector: {{istio: {NAME}}}
  servers:
  - {{port: {{number: 80, name: http, protocol: HTTP}}, hosts: [\"*.example.com\"]}}
  - port: {{number: 443, name: https, protocol: HTTPS}}
    hosts: [\"*.example.com\"]
    tls: {{mode: SIMPLE, credentialName: bench-certificate}}
"
    );
    for service in services {
        let _ = write!(
            text,
            "---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: {NAMESPACE}, creationTimestamp: 2026-01-01T00:00:00Z}}
spec:
  hosts: [{name}.example.com]
  gateways: [{NAME}]
  http: [{{route: [{{destination: {{host: {host}}}}}]}}]
",
            name = service.name(),
            host = service.host(),
        );
    }
    text
}

/// A secret with a new certificate and key, and a text that only this certificate has.
pub(crate) fn secret() -> Result<(String, String)> {
    let key = rcgen::KeyPair::generate().context("make a key")?;
    let parameters = rcgen::CertificateParams::new(vec!["*.example.com".to_owned()]).context("name a certificate")?;
    let certificate = parameters.self_signed(&key).context("make a certificate")?.pem();
    // A line of the signature, which no other certificate has.
    let marker = certificate.lines().rev().nth(2).unwrap_or_default().to_owned();
    let text = format!(
        "apiVersion: v1
kind: Secret
metadata: {{name: bench-certificate, namespace: {NAMESPACE}}}
type: kubernetes.io/tls
data: {{tls.crt: {}, tls.key: {}}}
",
        STANDARD.encode(&certificate),
        STANDARD.encode(key.serialize_pem()),
    );
    Ok((text, marker))
}
