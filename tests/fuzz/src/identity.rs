//! Mutated credentials of callers, and nodes that claim an identity.
//!
//! An authenticated caller has the identity that the first valid credential names, and the proxy of an authenticated
//! caller has the namespace and the service account of one of its identities.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;
use serde_json::json;
use sluice_auth::{
    Authenticator, Authenticators, Call, Caller, ClientCertificates, ClusterKeys, FORWARDED_HEADER, FileKeys,
    ForwardedCertificates, SignedTokens, TrustDomain,
};
use sluice_model::{ClientProfile, Identity, Proxy, ProxyKey, ResourceType, Text};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_xds::{DiscoveryServer, Metrics, NodeError, ProxyInput};
use sluice_xds_protocol::{Request, Store, XdsProtocol};

use crate::bytes;
use crate::jwt::Issuer;
use crate::memory_bound::within_for_client;
use crate::mutate::mutate;
use crate::rng::FuzzRng;
use crate::run::{FuzzStatistics, Run};
use crate::seeds::Seeds;
use crate::turns;
use crate::violation::{Violation, violation};

const NAMES: [&str; 4] = ["shop", "bank", "istio-system", "a"];
const TRUSTED: &str = "10.1.0.0/16";

/// Proxies of accepted streams.
#[derive(Default)]
struct Recorded(Mutex<Vec<Arc<Proxy>>>);

impl ProxyInput for Recorded {
    fn parse(&self, node: &Node) -> Result<Proxy, NodeError> {
        sluice_parse::parse_proxy(node, &BTreeMap::new()).map_err(|error| NodeError::Invalid(error.to_string()))
    }

    fn profile(&self, _: &Proxy) -> ClientProfile {
        ClientProfile::default()
    }

    fn set(&self, _: ProxyKey, proxy: Arc<Proxy>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(proxy);
    }

    fn add_secret_client(&self, _: ProxyKey) {}

    fn remove(&self, _: ProxyKey) {}
}

/// The chain of authenticators, and keys for tokens.
pub(crate) struct CallerTarget<'s> {
    seeds: &'s Seeds,
    issuer: Issuer,
    runtime: tokio::runtime::Runtime,
    authenticators: Authenticators,
    _directory: tempfile::TempDir,
}

/// Makes calls until the deadline.
///
/// # Errors
/// There are no keys.
pub fn run(run: &Run, seeds: &Seeds) -> Result<FuzzStatistics> {
    let target = CallerTarget::new(seeds)?;
    Ok(turns::run(run, "callers", |rng| target.run_turn(rng)))
}

fn account(rng: &mut FuzzRng) -> Identity {
    let mut name = || rng.choose(&NAMES).copied().unwrap_or_default();
    let (namespace, account) = (name(), name());
    Identity::new("td", namespace, account)
}

impl<'s> CallerTarget<'s> {
    /// # Errors
    /// There are no keys.
    pub(crate) fn new(seeds: &'s Seeds) -> Result<Self> {
        let issuer = Issuer::new()?;
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("keys.json");
        std::fs::write(&file, issuer.keys().to_string())?;
        let own = ClusterKeys { cluster: Text::from("own"), keys: FileKeys::new(&file) };
        let keys = [(String::new(), own)].into();
        let audiences = ["istio-ca".to_owned()];
        let tokens = SignedTokens::of_clusters(keys, "https://issuer", &audiences, TrustDomain::new("td".into()));
        let chain: Vec<Arc<dyn Authenticator>> = vec![
            Arc::new(ClientCertificates::default()),
            Arc::new(tokens),
            Arc::new(ForwardedCertificates::new(vec![TRUSTED.parse()?])),
        ];
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let authenticators = Authenticators::new(chain, true);
        Ok(Self { seeds, issuer, runtime, authenticators, _directory: directory })
    }

    /// Sends the bytes as the header of a trusted peer. Returns whether the caller was authenticated.
    pub(crate) fn run_header(&self, bytes: &[u8]) -> Result<bool, Violation> {
        let Ok(value) = http::HeaderValue::from_bytes(bytes) else { return Ok(false) };
        let headers = http::HeaderMap::from_iter([(http::HeaderName::from_static(FORWARDED_HEADER), value)]);
        let peer = Some(SocketAddr::from(([10, 1, 2, 3], 1)));
        let call = Call { headers: &headers, peer, certificates: &[] };
        match self.authenticated(&call, bytes.len())? {
            Some(caller) => check_header(&caller, &String::from_utf8_lossy(bytes)).map(|()| true),
            None => Ok(false),
        }
    }

    /// The caller, if it is authenticated by credentials of that size.
    fn authenticated(&self, call: &Call<'_>, bytes: usize) -> Result<Option<Caller>, Violation> {
        within_for_client("callers", bytes, || self.runtime.block_on(self.authenticators.caller(call)).ok())
    }

    /// A call with random credentials, and a stream with a random node. Returns whether the caller was authenticated.
    pub(crate) fn run_turn(&self, rng: &mut FuzzRng) -> Result<bool, Violation> {
        let mut headers = http::HeaderMap::new();
        let mut description = String::new();
        // The credentials, in the order of their precedence.
        let token = (!rng.once_in(3)).then(|| self.issuer.token(self.seeds, rng));
        let mut by_token = None;
        if let Some(token) = &token {
            for _ in 0..=usize::from(rng.once_in(8)) {
                let prefix = *rng.choose(&["Bearer ", "Bearer ", "Bearer ", "bearer ", "Basic ", ""]).unwrap_or(&"");
                let value = format!("{prefix}{}", token.text);
                description += &format!("authorization: {value}\n");
                if let Ok(value) = http::HeaderValue::from_bytes(value.as_bytes()) {
                    headers.append("authorization", value);
                    by_token = by_token.or(Some(prefix == "Bearer "));
                }
            }
        }
        let peer = rng.choose(&["10.1.2.3:1", "10.2.2.3:1", "[::1]:1", "[::ffff:10.1.0.1]:1", "[fe80::1]:1"]);
        let peer: Option<SocketAddr> = peer.filter(|_| !rng.once_in(20)).and_then(|peer| peer.parse().ok());
        let trusted = peer.is_some_and(|peer| peer.ip().to_canonical().to_string().starts_with("10.1."));
        let mut forwarded = None;
        if !rng.once_in(3) {
            let (mut value, names) = header(rng);
            let changed = rng.once_in(2);
            if changed {
                bytes::change(&mut value, &[], rng, 4);
            }
            description += &format!("from {peer:?}, {FORWARDED_HEADER}: {}\n", String::from_utf8_lossy(&value));
            if let Ok(value) = http::HeaderValue::from_bytes(&value) {
                forwarded = Some((String::from_utf8_lossy(value.as_bytes()).into_owned(), names, changed));
                headers.insert(FORWARDED_HEADER, value);
            }
        }
        if rng.once_in(6) {
            let mut value = b"Kubernetes".to_vec();
            if rng.once_in(2) {
                bytes::change(&mut value, &[], rng, 3);
            }
            if let Ok(value) = http::HeaderValue::from_bytes(&value) {
                headers.append("clusterid", value);
            }
        }
        let call = Call { headers: &headers, peer, certificates: &[] };
        let bytes = headers.values().map(http::HeaderValue::len).sum();
        let Some(caller) = self.authenticated(&call, bytes)? else {
            let good = token.as_ref().and_then(|token| token.identity.as_ref());
            if good.is_some() && by_token == Some(true) && !headers.contains_key("clusterid") {
                return violation("a caller with valid credentials is rejected", description);
            }
            return Ok(false);
        };
        match (caller.authenticator, &forwarded) {
            (Some("token of a cluster"), _) => {}
            (Some("forwarded certificate"), Some((value, names, changed))) => {
                if !trusted {
                    return violation("a forwarded certificate of an untrusted peer is accepted", description);
                }
                if !changed && caller.identities != *names {
                    return violation(
                        "a forwarded certificate is parsed incorrectly",
                        format!("{:?}\n{description}", caller.identities),
                    );
                }
                // Of a mutated header, the test checks only that each name occurs in it.
                check_header(&caller, value)?;
            }
            (means, _) => {
                return violation("a caller without credentials is authenticated", format!("{means:?}\n{description}"));
            }
        }
        self.proxy(&caller, rng).map(|()| true)
    }

    /// Opens a stream as a caller, with a node that claims any identity.
    fn proxy(&self, caller: &Caller, rng: &mut FuzzRng) -> Result<(), Violation> {
        let mut node = json!({
            "id": format!("sidecar~10.0.0.1~pod.{}~{}.svc.cluster.local", account(rng).namespace, account(rng).namespace),
            "metadata": {"NAMESPACE": account(rng).namespace.as_str(), "SERVICE_ACCOUNT": account(rng).service_account.as_str()},
        });
        // Often an identity that the caller has.
        if let Some(identity) = rng.choose(&caller.identities).filter(|_| !rng.once_in(3)) {
            node["metadata"]["NAMESPACE"] = json!(identity.namespace.as_str());
            node["metadata"]["SERVICE_ACCOUNT"] = json!(identity.service_account.as_str());
        }
        for name in ["NAMESPACE", "SERVICE_ACCOUNT"] {
            if rng.once_in(6)
                && let Some(fields) = node["metadata"].as_object_mut()
            {
                fields.remove(name);
            }
        }
        if rng.once_in(3) {
            let times = 1 + rng.below(3);
            mutate(&mut node, "", self.seeds, rng, times);
        }
        let Ok(decoded) = sluice_proto::json::decode::<Node>(&node) else { return Ok(()) };
        let recorded = Arc::new(Recorded::default());
        let server = DiscoveryServer::new(Arc::new(Store::default()), recorded.clone(), Metrics::default(), true);
        server.store().set_ready();
        let Ok(mut stream) = server.open(XdsProtocol::Delta, caller.clone()) else { return Ok(()) };
        let type_url = ResourceType::Cluster.type_url().to_owned();
        // A rejected stream is correct.
        let _ = stream.request(Request { node: Some(decoded.message), type_url, ..Request::default() }, Instant::now());
        let proxies = std::mem::take(&mut *recorded.0.lock().unwrap_or_else(PoisonError::into_inner));
        for proxy in proxies {
            let description = || format!("{:?}\n{node:#}", caller.identities);
            let Some(identity) = &proxy.identity else {
                return violation("a proxy of an authenticated caller has no identity", description());
            };
            let matches = |claimed: &Text, proven: &Text| claimed.as_str().is_empty() || claimed == proven;
            if !caller.identities.contains(identity)
                || !matches(&proxy.namespace, &identity.namespace)
                || !matches(&proxy.service_account, &identity.service_account)
            {
                return violation("a proxy is accepted whose identity is not that of its caller", description());
            }
        }
        Ok(())
    }
}

/// Checks that the identities of a caller occur in its header.
fn check_header(caller: &Caller, header: &str) -> Result<(), Violation> {
    // A quoted value has backslashes that a name does not have, and a name may have some itself.
    let plain = |text: &str| text.replace('\\', "");
    let names = plain(header);
    if caller.identities.iter().any(|identity| !names.contains(&plain(&identity.to_string()))) {
        return violation("an identity is not in the header", format!("{:?}\n{header}", caller.identities));
    }
    Ok(())
}

/// A header as a gateway writes it, with certificates whose subjects an attacker may choose. Also returns the identities
/// in it.
pub(crate) fn header(rng: &mut FuzzRng) -> (Vec<u8>, Vec<Identity>) {
    let mut elements = Vec::new();
    let mut names = Vec::new();
    for _ in 0..=rng.below(2) {
        let mut pairs = vec!["By=spiffe://td/ns/istio-system/sa/gateway".to_owned()];
        if rng.once_in(2) {
            pairs.push("Hash=468ed33be74eee6556d90c0149c1309e9ba61d6425303443c0748a02dd8de688".to_owned());
        }
        if rng.once_in(2) {
            let forged = "CN=\",URI=spiffe://td/ns/bank/sa/vault;\\";
            let subject = *rng
                .choose(&["CN=a,O=b", forged, "", ";URI=spiffe://td/ns/bank/sa/vault", "\\\";URI=x"])
                .unwrap_or(&"");
            pairs.push(format!("Subject={}", quoted(subject)));
        }
        for _ in 0..rng.below(3) {
            let identity = account(rng);
            let uri = match rng.below(5) {
                0 => "https://elsewhere/ns/shop/sa/cart".to_owned(),
                _ => {
                    names.push(identity.clone());
                    identity.to_string()
                }
            };
            pairs.push(format!("URI={}", if rng.once_in(3) { quoted(&uri) } else { uri }));
        }
        if rng.once_in(3) {
            pairs.push("DNS=shop.example.com".to_owned());
        }
        elements.push(pairs.join(";"));
    }
    (elements.join(",").into_bytes(), names)
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
