//! Runs cases against the real server, and writes the received resources to files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};

use super::case::{Case, CaseProxy};
use super::compare::compare;
use super::report::{Report, Row};
use crate::ads::{Dump, Identity, Kind, Limits, Protocol, connect, dump};
use crate::canonical::{name_of, sorted_text};
use crate::server::{Options, Sluiced};

/// The cases, types and protocols to run, and the detail of the report.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Families; all if empty.
    pub families: BTreeSet<String>,
    /// Part of a case's name; any if empty.
    pub case: String,
    /// Types; all if empty.
    pub kinds: BTreeSet<Kind>,
    /// Protocols.
    pub protocols: Vec<Protocol>,
    /// Number of differing paths to report for each resource.
    pub paths: usize,
    /// Number of cases that run at the same time.
    pub parallel: usize,
    /// Subscribe to the recorded names instead of those to which resources refer. This shows routes even if listeners
    /// are wrong.
    pub recorded_names: bool,
    /// Directory for received resources and logs.
    pub out: PathBuf,
}

impl Plan {
    /// All cases, types and protocols, unless the variables `FAMILY`, `TYPE`, `PROTOCOL` (comma separated), `CASE`,
    /// `DIFFS`, `PARALLEL` and `NAMES=golden` set something else.
    ///
    /// # Errors
    /// A variable names an unknown type or protocol, or is not a number.
    pub fn from_env(out: PathBuf, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let list = |name: &str| -> Vec<String> {
            let text = variable(name).unwrap_or_default();
            text.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
        };
        let number = |name: &str, default: usize| match variable(name).filter(|text| !text.is_empty()) {
            Some(text) => text.parse().with_context(|| format!("read {name}")),
            None => Ok(default),
        };
        let kinds = list("TYPE")
            .into_iter()
            .map(|name| Kind::named(&name.to_uppercase()).with_context(|| format!("TYPE: {name} is not a type")));
        let protocols = list("PROTOCOL").into_iter().map(|name| {
            let protocol = Protocol::ALL.into_iter().find(|candidate| candidate.name() == name);
            protocol.with_context(|| format!("PROTOCOL: {name} is not one of sotw, delta"))
        });
        let protocols: Vec<Protocol> = protocols.collect::<Result<_>>()?;
        Ok(Self {
            families: list("FAMILY").into_iter().collect(),
            case: variable("CASE").unwrap_or_default(),
            kinds: kinds.collect::<Result<_>>()?,
            protocols: if protocols.is_empty() { Protocol::ALL.to_vec() } else { protocols },
            paths: number("DIFFS", 3)?,
            parallel: number("PARALLEL", 4)?.max(1),
            recorded_names: variable("NAMES").is_some_and(|names| names == "golden"),
            out,
        })
    }

    /// Whether some cases, types or protocols are left out.
    pub fn is_partial(&self) -> bool {
        !(self.families.is_empty() && self.case.is_empty() && self.kinds.is_empty())
            || self.protocols.len() < Protocol::ALL.len()
            || self.recorded_names
    }

    /// Whether a case is to be run.
    pub fn includes(&self, family: &str, name: &str) -> bool {
        (self.families.is_empty() || self.families.contains(family)) && name.contains(&self.case)
    }

    fn includes_kind(&self, kind: Kind) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }
}

/// The variable that lets the loopback forward the identities of proxies.
pub const TRUSTED_LOOPBACK: [&str; 2] = ["TRUSTED_GATEWAY_CIDR", "127.0.0.0/8"];

/// Runs the cases, several at a time, and compares all received resources.
///
/// # Errors
/// The test itself fails. Failures of the server are in the report.
pub async fn run(plan: &Plan, cases: &[Case]) -> Result<Report> {
    let mut finished: Vec<(usize, Result<Vec<Row>>)> = stream::iter(cases.iter().enumerate())
        .map(|(index, case)| async move { (index, run_case(plan, case).await) })
        .buffer_unordered(plan.parallel)
        .collect()
        .await;
    finished.sort_by_key(|(index, _)| *index);
    let mut report = Report::default();
    for (index, result) in finished {
        match result {
            Ok(rows) => report.rows.extend(rows),
            Err(error) => {
                report.failed.insert(cases[index].id(), format!("{error:#}"));
                report.rows.extend(missing_rows(plan, &cases[index])?);
            }
        }
    }
    Ok(report)
}

async fn run_case(plan: &Plan, case: &Case) -> Result<Vec<Row>> {
    let objects = tempfile::tempdir().context("make a directory for the objects")?;
    let (primary, remotes) = case.write_objects(objects.path())?;
    let out = plan.out.join(&case.family).join(&case.name);
    std::fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    let log = out.join("sluiced.log");
    let mut options = Options::new(&primary);
    options.env = case.env.clone().into_iter().collect();
    options.env.push(TRUSTED_LOOPBACK.map(str::to_owned).into());
    options.log = Some(log.clone());
    for (cluster, dir) in remotes {
        options.args.push(format!("--remoteConfigDir={cluster}={}", dir.display()));
    }
    let server = Sluiced::start(&options).await?;
    let pairs = plan.protocols.iter().flat_map(|protocol| case.proxies.iter().map(move |proxy| (*protocol, proxy)));
    let address = server.grpc;
    let dumps: Vec<(Protocol, &CaseProxy, Dump)> = stream::iter(pairs)
        .map(|(protocol, proxy)| async move {
            let mut names = proxy.names.clone();
            if plan.recorded_names {
                for (kind, golden) in case.golden(&proxy.name)?.into_iter().filter(|(kind, _)| !kind.is_wildcard()) {
                    names.entry(kind).or_insert_with(|| golden.iter().flatten().map(name_of).collect());
                }
            }
            let dump = dump_proxy(address, protocol, proxy, &names, Limits::default()).await;
            Ok((protocol, proxy, dump.with_context(|| format!("{} over {protocol}", proxy.name))?))
        })
        .buffered(4)
        .try_collect()
        .await
        .map_err(|error: anyhow::Error| match first_panic(&log) {
            Ok(Some(line)) => error.context(line),
            _ => error,
        })?;
    server.stop(Duration::from_secs(10)).await?;
    if let Some(line) = first_panic(&log)? {
        anyhow::bail!("{line}");
    }
    let mut rows = Vec::new();
    for (protocol, proxy, dump) in dumps {
        write_dump(&out.join(protocol.name()).join(&proxy.name), &dump)?;
        for (kind, golden) in case.golden(&proxy.name)?.into_iter().filter(|(kind, _)| plan.includes_kind(*kind)) {
            let actual = dump.get(&kind).and_then(Option::as_deref);
            let result = compare(golden.as_deref(), actual, plan.paths);
            rows.push(row(case, proxy, protocol, kind, result));
        }
    }
    Ok(rows)
}

/// Receives the resources that a server sends to a proxy of a case.
///
/// # Errors
/// The node is invalid, or the server rejects the stream.
pub async fn dump_proxy(
    address: std::net::SocketAddr,
    protocol: Protocol,
    proxy: &CaseProxy,
    names: &BTreeMap<Kind, Vec<String>>,
    limits: Limits,
) -> Result<Dump> {
    let kinds = proxy.kinds();
    let mut identity = Identity::of_node(&proxy.node).context("read the node")?;
    if kinds.contains(&Kind::Sds) {
        identity = identity.forwarded_as(proxy.forwarded_identity());
    }
    dump(connect(address).await?, protocol, identity, &kinds, names, limits).await
}

/// Receives the resources that a server sends to the first proxy of a case, over delta xDS.
///
/// # Errors
/// The case has no proxy, its node is invalid, or the server rejects the stream.
pub(super) async fn dump_first_proxy(server: &Sluiced, case: &Case) -> Result<Dump> {
    let proxy = case.proxies.first().context("the case has a proxy")?;
    // The server may be under attack: a client that missed a late response would see other resources.
    let limits = Limits { give_up: Duration::from_secs(20), total: Duration::from_mins(1), ..Limits::default() };
    dump_proxy(server.grpc, Protocol::Delta, proxy, &BTreeMap::new(), limits).await
}

fn row(case: &Case, proxy: &CaseProxy, protocol: Protocol, kind: Kind, result: super::compare::Comparison) -> Row {
    Row { family: case.family.clone(), case: case.name.clone(), proxy: proxy.name.clone(), protocol, kind, result }
}

/// The rows of a case that could not be run: every resource is missing.
fn missing_rows(plan: &Plan, case: &Case) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for proxy in &case.proxies {
        for (kind, golden) in case.golden(&proxy.name)?.into_iter().filter(|(kind, _)| plan.includes_kind(*kind)) {
            for protocol in &plan.protocols {
                rows.push(row(case, proxy, *protocol, kind, compare(golden.as_deref(), None, 0)));
            }
        }
    }
    Ok(rows)
}

/// Writes resources in the form of the goldens: one on each line.
///
/// # Errors
/// A file cannot be written.
pub fn write_dump(dir: &Path, dump: &Dump) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    for (kind, resources) in dump {
        let text = match resources {
            None => "null\n".to_owned(),
            Some(resources) if resources.is_empty() => "[]\n".to_owned(),
            Some(resources) => {
                let lines: Vec<String> = resources.iter().map(sorted_text).collect();
                format!("[\n{}\n]\n", lines.join(",\n"))
            }
        };
        let path = dir.join(format!("{}.json", kind.name()));
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// The first line of a server's log that reports a panic.
pub(super) fn first_panic(log: &Path) -> Result<Option<String>> {
    let text = std::fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
    Ok(text.lines().find(|line| line.contains("panicked")).map(ToOwned::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_select_cases_types_and_protocols() {
        let plan = |pairs: &[(&str, &str)]| {
            let pairs: BTreeMap<String, String> = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
            Plan::from_env(PathBuf::new(), move |name| pairs.get(name).cloned())
        };
        let all = plan(&[]).expect("valid");
        assert!(!all.is_partial() && all.includes("any", "01-a"));
        let some = plan(&[("FAMILY", "service,dns"), ("CASE", "01"), ("TYPE", "lds"), ("PROTOCOL", "delta")]);
        let some = some.expect("valid");
        assert!(
            some.is_partial()
                && some.includes("dns", "01-a")
                && !some.includes("dns", "02-b")
                && !some.includes("x", "01-a")
        );
        assert_eq!((some.protocols, some.kinds), (vec![Protocol::Delta], BTreeSet::from([Kind::Lds])));
        assert!(plan(&[("TYPE", "XDS")]).is_err());
        assert!(plan(&[("DIFFS", "many")]).is_err());
    }
}
