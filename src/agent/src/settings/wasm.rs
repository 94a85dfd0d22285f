//! How Wasm modules are fetched and kept.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use sluice_parse::address_blocks;

use crate::environment::Environment;

/// Below the directory for data of the pod.
const DIRECTORY: &str = "./var/lib/istio/data";

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct WasmSettings {
    /// Where modules are kept.
    pub(crate) directory: PathBuf,
    /// Hosts, with their ports, whose certificates are not verified; `*` for all.
    pub(crate) insecure: BTreeSet<String>,
    /// Addresses that are never asked.
    pub(crate) blocked: Vec<IpNet>,
    /// How long a module is kept that nothing asks for.
    pub(crate) expiry: Duration,
    pub(crate) purge_interval: Duration,
    /// For one request.
    pub(crate) request_timeout: Duration,
    pub(crate) attempts: u32,
    /// Before the second attempt; half as long again before each further one.
    pub(crate) pause: Duration,
    /// Biggest module, also while it is unpacked.
    pub(crate) most_bytes: usize,
    /// Credentials for registries when an extension brings none.
    pub(crate) docker_config: Option<PathBuf>,
}

impl WasmSettings {
    pub(super) fn new(environment: &Environment, warnings: &mut Vec<String>) -> Self {
        let list = |name: &str| -> Vec<String> {
            let items = environment.text(name).unwrap_or_default().split(',').map(str::trim);
            items.filter(|item| !item.is_empty()).map(ToOwned::to_owned).collect()
        };
        const BLOCKED: &str = "BLOCKED_CIDRS_IN_WASM_FETCH";
        let blocked = address_blocks(environment.text(BLOCKED).unwrap_or_default(), |block| {
            warnings.push(format!("variable {BLOCKED}: {block:?} is no block of addresses"));
        });
        Self {
            directory: DIRECTORY.into(),
            insecure: list("WASM_INSECURE_REGISTRIES").into_iter().collect(),
            blocked,
            expiry: environment.duration("WASM_MODULE_EXPIRY", Duration::from_secs(24 * 3600)),
            purge_interval: environment
                .duration("WASM_PURGE_INTERVAL", Duration::from_secs(3600))
                .max(Duration::from_secs(1)),
            request_timeout: environment.duration("WASM_HTTP_REQUEST_TIMEOUT", Duration::from_secs(15)),
            pause: Duration::from_millis(500),
            attempts: environment.number("WASM_HTTP_REQUEST_MAX_RETRIES", 5_u32).max(1),
            most_bytes: environment.number("ISTIO_WASM_MAX_BINARY_SIZE_BYTES", 256 << 20),
            docker_config: environment
                .text("DOCKER_CONFIG")
                .map(|directory| PathBuf::from(directory).join("config.json")),
        }
    }

    /// Whether a host's certificate is not verified.
    pub(crate) fn is_insecure(&self, host: &str) -> bool {
        self.insecure.contains("*") || self.insecure.contains(host)
    }
}
