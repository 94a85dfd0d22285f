//! The audit log of the API server.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// A request that the API server answered.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct AuditedRequest {
    /// The user, such as `system:serviceaccount:istio-system:istiod`.
    pub user: String,
    /// `list`, `watch`, `get`, `create`, `update`, `patch` or `delete`.
    pub verb: String,
    /// API group, empty for the core group.
    pub group: String,
    /// Plural name, with the subresource: `serviceentries/status`. Empty if the path is not that of a resource.
    pub resource: String,
    /// The namespace, empty for all.
    pub namespace: String,
    /// Path and query.
    pub uri: String,
    /// Status code of the response.
    pub code: u64,
}

/// The requests in an audit log of users whose names begin with a prefix. A watch that has ended is in it once.
pub(super) fn read(path: &Path, prefix: &str) -> Result<Vec<AuditedRequest>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        result => result.context("read the audit log")?,
    };
    let mut requests = Vec::new();
    // The last line may be incomplete.
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    // Most lines of a log that tests share are of other users. Parsing them would take most of the time.
    for line in lines.filter(|line| line.contains(prefix)) {
        let event: Value = serde_json::from_str(line).context("read a line of the audit log")?;
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (verb, stage) = (text("/verb"), text("/stage"));
        // A watch is logged at its beginning and at its end.
        if (verb == "watch") != (stage == "ResponseStarted") && event["responseStatus"]["code"] == 200 {
            continue;
        }
        if !text("/user/username").starts_with(prefix) {
            continue;
        }
        let subresource = text("/objectRef/subresource");
        let resource = text("/objectRef/resource");
        requests.push(AuditedRequest {
            user: text("/user/username"),
            group: text("/objectRef/apiGroup"),
            resource: if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") },
            namespace: text("/objectRef/namespace"),
            uri: text("/requestURI"),
            code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
            verb,
        });
    }
    Ok(requests)
}
