//! The `version` subcommand: the versions of the client, the control plane and the proxies.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde_json::{Value, json};

use crate::answer_output::{elements, print, proxies, subscribers, text};
use crate::connect::{MissingReplicas, QueryError, connect};
use crate::operator_args::VersionArgs;

const CLIENT_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &VersionArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let mut answer = json!({ "clientVersion": { "version": CLIENT_VERSION } });
    if args.remote {
        match remote(args) {
            Ok((mesh, data_plane, missing)) => {
                missing.report(errors)?;
                answer["meshVersion"] = mesh.into();
                answer["dataPlaneVersion"] = data_plane.into();
            }
            Err(error) => writeln!(errors, "sluicectl: the version of the control plane is not known: {error}")?,
        }
    }
    print(args.output, &answer, out, lines)?;
    Ok(0)
}

/// The versions of the replicas, those of the proxies, and the replicas that do not answer.
fn remote(args: &VersionArgs) -> Result<(Vec<Value>, Vec<Value>, MissingReplicas), QueryError> {
    let server = connect(&args.server)?.identified();
    let asked = server.ask_all(|replica| {
        let version = server.bytes_of(replica, "/version", &[])?;
        Ok((info(&String::from_utf8_lossy(&version)), server.answer_of(replica, "syncz", &[])?))
    })?;
    let (mut mesh, mut data_plane) = (Vec::new(), Vec::new());
    for (replica, (info, answer)) in asked.answers {
        mesh.push(json!({"Component": "istiod", "ID": replica.name, "Revision": replica.revision, "Info": info}));
        data_plane.extend(subscribers(&answer).map(|proxy| {
            let (id, version, kind) = (text(proxy, "proxy"), text(proxy, "istio_version"), text(proxy, "proxy_type"));
            json!({"ID": id, "IstioVersion": version, "Type": kind})
        }));
    }
    data_plane.sort_by(|a, b| text(a, "ID").cmp(text(b, "ID")));
    Ok((mesh, data_plane, asked.missing))
}

/// Number of proxies by version.
fn counts(proxies: &[Value]) -> BTreeMap<&str, u64> {
    let mut counts = BTreeMap::new();
    for proxy in proxies {
        *counts.entry(text(proxy, "IstioVersion")).or_default() += 1;
    }
    counts
}

/// The answer of `/version`: `VERSION-REVISION-STATUS`, or a JSON object.
fn info(answer: &str) -> Value {
    if let Ok(value @ Value::Object(_)) = serde_json::from_str(answer) {
        return value;
    }
    let mut parts = answer.trim().rsplitn(3, '-');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(status), Some(revision), Some(version)) => {
            json!({"version": version, "revision": revision, "status": status})
        }
        _ => json!({"version": answer.trim()}),
    }
}

fn lines(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "client version: {}", text(&answer["clientVersion"], "version"))?;
    if !answer["meshVersion"].is_array() {
        return Ok(());
    }
    let mesh: BTreeSet<&str> = elements(&answer["meshVersion"]).iter().map(|it| text(&it["Info"], "version")).collect();
    writeln!(out, "control plane version: {}", mesh.into_iter().collect::<Vec<_>>().join(", "))?;
    let of_proxies = counts(elements(&answer["dataPlaneVersion"]));
    let counted = of_proxies.iter().map(|(version, count)| format!("{version} ({})", proxies(*count)));
    match of_proxies.is_empty() {
        true => writeln!(out, "data plane version: none"),
        false => writeln!(out, "data plane version: {}", counted.collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_may_have_hyphens() {
        let expected = json!({"version": "1.31.0-alpha.0", "revision": "86c9f01", "status": "Clean"});
        assert_eq!(info("1.31.0-alpha.0-86c9f01-Clean\n"), expected);
        assert_eq!(info("{\"version\": \"1\"}"), json!({"version": "1"}));
        assert_eq!(info("1"), json!({"version": "1"}));
    }

    #[test]
    fn lines_are_those_of_istioctl() {
        let proxy = |version: &str| json!({"ID": "a.b", "IstioVersion": version});
        let answer = json!({
            "clientVersion": {"version": "0.1.0"},
            "meshVersion": [{"Info": {"version": "0.1.0"}}, {"Info": {"version": "0.1.0"}}],
            "dataPlaneVersion": [proxy("1.30.0"), proxy("1.30.0"), proxy("1.29.0")],
        });
        let mut out = Vec::new();
        lines(&answer, &mut out).expect("written");
        let expected = "client version: 0.1.0\ncontrol plane version: 0.1.0\ndata plane version: 1.29.0 (1 proxy), 1.30.0 (2 proxies)\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
