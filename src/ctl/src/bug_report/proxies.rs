//! Logs of the containers of the mesh, and dumps of proxies.

use std::io;

use kube::Client;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::archive::Archive;
use super::container_log::{self, LogRange};
use super::deadline::Deadline;
use super::pod_filter::{PodSelection, container_names};
use crate::answer_output::{list, text};
use crate::connect::kubernetes::{is_running, pod_of};
use crate::connect::{PodConnector, QueryError};
use crate::proxy_config::dump::ConfigDump;

/// The container of the control plane.
const CONTROL_PLANE: &str = "discovery";
/// The container of Envoy.
const PROXY: &str = "istio-proxy";
/// Containers of the mesh. Logs of applications are not read.
const CONTAINERS: [&str; 5] = [CONTROL_PLANE, "install-cni", PROXY, "istio-validation", "ztunnel"];
/// Pages of Envoy's admin interface beside its configuration, with the names of their files.
const ENVOY_PAGES: [(&str, &str); 6] = [
    ("/certs", "certs.json"),
    ("/clusters", "clusters.txt"),
    ("/listeners", "listeners.txt"),
    ("/memory", "memory.json"),
    ("/server_info", "server_info.json"),
    ("/stats/prometheus", "stats.txt"),
];

/// A container of the report.
#[derive(Clone, Debug)]
pub(super) struct SelectedContainer<'p> {
    pub(super) pod: &'p Value,
    pub(super) container: &'p str,
}

impl SelectedContainer<'_> {
    fn namespace(&self) -> &str {
        text(&self.pod["metadata"], "namespace")
    }

    fn pod_name(&self) -> &str {
        text(&self.pod["metadata"], "name")
    }

    /// `NAMESPACE/POD/CONTAINER`.
    pub(super) fn label(&self) -> String {
        format!("{}/{}/{}", self.namespace(), self.pod_name(), self.container)
    }

    /// The directory in the archive.
    fn directory(&self) -> String {
        let kind = if self.container == CONTROL_PLANE { "istio" } else { "proxies" };
        format!("{kind}/{}/{}", self.namespace(), self.pod_name())
    }

    fn has_restarted(&self) -> bool {
        let status = &self.pod["status"];
        let statuses = list(status, "containerStatuses").iter().chain(list(status, "initContainerStatuses"));
        statuses
            .filter(|it| it["name"] == self.container)
            .any(|it| it["restartCount"].as_u64().is_some_and(|it| it > 0))
    }
}

/// The containers of the mesh in the report: those of the control plane, and those that the filters select.
pub(super) fn select<'p>(
    pods: &'p [Value],
    selection: &PodSelection,
    istio_namespace: &str,
) -> Vec<SelectedContainer<'p>> {
    let containers = pods.iter().flat_map(|pod| {
        let names = container_names(pod).into_iter().filter(|name| CONTAINERS.contains(name));
        names.map(move |container| SelectedContainer { pod, container })
    });
    let is_selected = |it: &SelectedContainer<'_>| {
        let is_control_plane = it.container == CONTROL_PLANE && it.namespace() == istio_namespace;
        is_control_plane || selection.has_container(it.pod, it.container)
    };
    let mut selected: Vec<SelectedContainer<'p>> = containers.filter(is_selected).collect();
    // The control plane comes first, before a limit is reached.
    selected.sort_by_key(|it| (it.container != CONTROL_PLANE, it.label()));
    selected
}

/// Adds the logs of containers.
pub(super) fn add_logs(
    containers: &[SelectedContainer<'_>],
    (runtime, client): (&Runtime, &Client),
    range: &LogRange,
    deadline: &Deadline,
    archive: &mut Archive,
) -> io::Result<()> {
    for it in containers {
        if deadline.is_over() {
            archive.note("logs", &format!("not complete, from {} on: --timeout", it.label()));
            break;
        }
        let key = (it.namespace(), it.pod_name(), it.container);
        let instances = [(false, ""), (true, ".previous")];
        for (is_previous, end) in instances.into_iter().filter(|(is_previous, _)| !is_previous || it.has_restarted()) {
            let file = format!("{}/{}{end}.log", it.directory(), it.container);
            match runtime.block_on(container_log::read(client, key, range, is_previous)) {
                Ok(log) => archive.add_text(&file, &log)?,
                Err(reason) => archive.note(&file, &reason),
            }
        }
    }
    Ok(())
}

/// Adds what the admin interfaces of Envoys tell.
pub(super) fn add_dumps(
    containers: &[SelectedContainer<'_>],
    connector: &PodConnector,
    port: u16,
    deadline: &Deadline,
    archive: &mut Archive,
) -> io::Result<()> {
    for it in containers.iter().filter(|it| it.container == PROXY && is_running(it.pod)) {
        let directory = it.directory();
        if deadline.is_over() {
            archive.note("dumps of proxies", &format!("not complete, from {} on: --timeout", it.label()));
            break;
        }
        if let Err(error) = add_dump(it, connector, port, archive)? {
            archive.note(&directory, &error.to_string());
        }
    }
    Ok(())
}

fn add_dump(
    it: &SelectedContainer<'_>,
    connector: &PodConnector,
    port: u16,
    archive: &mut Archive,
) -> io::Result<Result<(), QueryError>> {
    let directory = it.directory();
    let answer = connector.forward(&pod_of(it.pod), port).and_then(|envoy| {
        let dump = connector.get(&envoy, "/config_dump", &[("include_eds", "true")])?;
        Ok((envoy, dump))
    });
    let (envoy, dump) = match answer {
        Ok(answer) => answer,
        Err(error) => return Ok(Err(error)),
    };
    match ConfigDump::parse(&dump) {
        Ok(dump) => archive.add_json(&format!("{directory}/config_dump.json"), json!({"configs": dump.sections}))?,
        Err(reason) => archive.note(&format!("{directory}/config_dump.json"), &reason),
    }
    for (path, file) in ENVOY_PAGES {
        match connector.get(&envoy, path, &[]) {
            Ok(answer) => archive.add_answer(&format!("{directory}/{file}"), &answer)?,
            Err(error) => archive.note(&format!("{directory}/{file}"), &error.to_string()),
        }
    }
    Ok(Ok(()))
}
