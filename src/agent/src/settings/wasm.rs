//! Settings of the fetch and the cache of Wasm modules.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use sluice_parse::address_blocks;

use crate::environment::Environment;

/// Directory of the modules, relative to the working directory.
const MODULE_DIRECTORY: &str = "./var/lib/istio/data";

/// Settings of Wasm modules.
#[derive(Clone, Debug)]
pub(crate) struct WasmSettings {
    /// Directory of the module files.
    pub(crate) directory: PathBuf,
    /// Hosts with their ports whose certificates are not verified; `*` for all.
    pub(crate) insecure_hosts: BTreeSet<String>,
    /// Networks that are never connected to.
    pub(crate) blocked: Vec<IpNet>,
    /// Time after which a module is removed if no extension requests it.
    pub(crate) expiry: Duration,
    pub(crate) purge_interval: Duration,
    /// Time limit of one request.
    pub(crate) request_timeout: Duration,
    pub(crate) max_attempts: u32,
    /// Delay before the second attempt; each further one is half as long again.
    pub(crate) retry_delay: Duration,
    /// Size limit of a module, before and after it is unpacked.
    pub(crate) max_bytes: usize,
    /// File with credentials for registries, for extensions without a pull secret.
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
            warnings.push(format!("variable {BLOCKED}: {block:?} is not a CIDR block and is ignored"));
        });
        Self {
            directory: MODULE_DIRECTORY.into(),
            insecure_hosts: list("WASM_INSECURE_REGISTRIES").into_iter().collect(),
            blocked,
            expiry: environment.duration("WASM_MODULE_EXPIRY", Duration::from_secs(24 * 3600)),
            purge_interval: environment
                .duration("WASM_PURGE_INTERVAL", Duration::from_secs(3600))
                .max(Duration::from_secs(1)),
            request_timeout: environment.duration("WASM_HTTP_REQUEST_TIMEOUT", Duration::from_secs(15)),
            retry_delay: Duration::from_millis(500),
            max_attempts: environment.number("WASM_HTTP_REQUEST_MAX_RETRIES", 5_u32).max(1),
            max_bytes: environment.number("ISTIO_WASM_MAX_BINARY_SIZE_BYTES", 256 << 20),
            docker_config: environment
                .text("DOCKER_CONFIG")
                .map(|directory| PathBuf::from(directory).join("config.json")),
        }
    }

    /// Whether the certificate of a host (with its port) is not verified.
    pub(crate) fn is_insecure(&self, host: &str) -> bool {
        self.insecure_hosts.contains("*") || self.insecure_hosts.contains(host)
    }
}
