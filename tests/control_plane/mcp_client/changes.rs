//! Random changes of objects in a directory.

use std::path::{Path, PathBuf};

use anyhow::Result;
use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use serde_json::{Value, json};

/// Number of objects of each kind.
const NAMES: u32 = 4;

/// Writes and deletes objects in a directory, one file for each.
pub(super) struct RandomObjects {
    directory: PathBuf,
    random: TestRng,
}

impl RandomObjects {
    /// The same changes for the same seed.
    pub(super) fn new(directory: &Path, seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Self { directory: directory.to_owned(), random: TestRng::from_seed(RngAlgorithm::ChaCha, &bytes) }
    }

    /// Writes or deletes a random object.
    pub(super) fn change(&mut self) -> Result<()> {
        let name = format!("n{}", self.random.next_u32() % NAMES);
        let (number, variant) = (self.random.next_u32(), self.random.next_u32() % 7);
        let kinds = objects(variant);
        let (api_version, kind, spec) = &kinds[number as usize % kinds.len()];
        if self.random.next_u32().is_multiple_of(4) {
            // The object may not exist.
            let _ = std::fs::remove_file(self.path(kind, &name));
            return Ok(());
        }
        self.write(api_version, kind, &name, spec)
    }

    /// Writes an object of the namespace `shop`.
    pub(super) fn write(&mut self, api_version: &str, kind: &str, name: &str, spec: &Value) -> Result<()> {
        let metadata = json!({"name": name, "namespace": "shop", "labels": {"team": "fruit"}});
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec});
        Ok(std::fs::write(self.path(kind, name), object.to_string())?)
    }

    fn path(&self, kind: &str, name: &str) -> PathBuf {
        self.directory.join(format!("{kind}-{name}.yaml"))
    }
}

/// A variant of an object of each kind. Some are invalid.
fn objects(variant: u32) -> Vec<(&'static str, &'static str, Value)> {
    let host = if variant.is_multiple_of(2) { "cart" } else { "pay.example.com" };
    let seconds = format!("{variant}.5s");
    let weight = 10 + variant;
    vec![
        (
            "networking.istio.io/v1",
            "VirtualService",
            json!({"hosts": [host], "http": [
                {"match": [{"uri": {"prefix": format!("/v{variant}")}}], "timeout": seconds,
                    "route": [{"destination": {"host": "cart", "subset": "v1"}, "weight": weight},
                        {"destination": {"host": "cart"}, "weight": 100 - weight}]}]}),
        ),
        (
            "networking.istio.io/v1",
            "DestinationRule",
            json!({"host": host, "subsets": [{"name": "v1", "labels": {"version": format!("{variant}")}}],
                "trafficPolicy": {"connectionPool": {"tcp": {"maxConnections": 1 + variant}},
                    "loadBalancer": {"simple": if variant > 3 { "ROUND_ROBIN" } else { "RANDOM" }}}}),
        ),
        (
            "networking.istio.io/v1",
            "ServiceEntry",
            json!({"hosts": ["pay.example.com", format!("pay{variant}.example.com")], "resolution": "STATIC",
                "ports": [{"number": 8000 + variant, "name": "http", "protocol": "HTTP"}],
                "endpoints": [{"address": format!("192.0.2.{variant}")}]}),
        ),
        (
            "networking.istio.io/v1",
            "Gateway",
            json!({"selector": {"istio": "gateway"}, "servers": [
                {"port": {"number": 80 + variant, "name": "http", "protocol": "HTTP"}, "hosts": ["*.example.com"]}]}),
        ),
        (
            "networking.istio.io/v1",
            "Sidecar",
            json!({"workloadSelector": {"labels": {"app": if variant > 2 { "cart" } else { "other" }}},
                "egress": [{"hosts": ["./*"]}], "outboundTrafficPolicy": {"mode": "REGISTRY_ONLY"}}),
        ),
        (
            "networking.istio.io/v1",
            "WorkloadEntry",
            json!({"address": format!("192.0.2.{}", 100 + variant), "labels": {"app": "cart"}, "weight": variant}),
        ),
        (
            "networking.istio.io/v1alpha3",
            "EnvoyFilter",
            json!({"priority": variant, "configPatches": [
                {"applyTo": "CLUSTER", "match": {"context": "SIDECAR_OUTBOUND"},
                    "patch": {"operation": "MERGE", "value": {"connect_timeout": seconds}}}]}),
        ),
        (
            "security.istio.io/v1",
            "AuthorizationPolicy",
            json!({"action": if variant > 4 { "DENY" } else { "ALLOW" },
                "rules": [{"to": [{"operation": {"paths": [format!("/{variant}")]}}]}]}),
        ),
        (
            "security.istio.io/v1",
            "PeerAuthentication",
            json!({"mtls": {"mode": if variant > 3 { "STRICT" } else { "DISABLE" }}}),
        ),
        (
            "telemetry.istio.io/v1",
            "Telemetry",
            json!({"tracing": [{"randomSamplingPercentage": f64::from(variant) + 0.25}]}),
        ),
        // Weights that are invalid.
        (
            "networking.istio.io/v1",
            "VirtualService",
            json!({"hosts": [host], "http": [{"route": [{"destination": {"host": "cart"}, "weight": -1}]}]}),
        ),
    ]
}
