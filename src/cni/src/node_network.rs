//! The network namespaces of the node: its own, in which probes are marked, and those of pods, which are found in `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::ifaddrs::getifaddrs;
use sluice_redirection::ApplyError;
use sluice_redirection::ambient::NodeSettings;
use sluice_redirection::namespace::{NamespaceError, NamespaceId, NetworkNamespace};
use sluice_redirection::probes;
use tracing::{debug, warn};

use crate::pod::NodePod;

/// A change in a namespace failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    /// The namespace cannot be opened or entered.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// Rules or routes cannot be changed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// `/proc` cannot be read.
    #[error("{}: {error}", path.display())]
    Proc {
        /// The directory.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// No process of the pod is found.
    #[error("no network namespace found for the pod: it is being created, or has no process")]
    NotFound,
}

/// Where the files of the node are, and its own namespace.
pub(crate) struct NodeNetwork {
    /// The root directory of the node, such as `/host`.
    root: PathBuf,
    /// The namespace of the node; `None` if the agent runs in it.
    node: Option<NetworkNamespace>,
    /// Namespaces that are never those of a pod.
    reserved: Vec<NamespaceId>,
    /// The owner, a UID, of each address that is probed.
    probed: Mutex<BTreeMap<IpAddr, String>>,
    settings: NodeSettings,
}

impl NodeNetwork {
    /// Opens the namespaces. With `switch`, the one of the node is that of its first process.
    pub(crate) fn open(root: &Path, switch: bool, settings: NodeSettings) -> Result<Self, NamespaceError> {
        let first = root.join("proc/1/ns/net");
        let node = if switch { Some(NetworkNamespace::open(&first)?) } else { None };
        // Without the switch, the first process may be in the namespace of the agent, or not be visible.
        let reserved = NetworkNamespace::open(&first).iter().map(NetworkNamespace::id).collect();
        Ok(Self { root: root.to_owned(), node, reserved, probed: Mutex::default(), settings })
    }

    /// The settings of the node.
    pub(crate) fn settings(&self) -> &NodeSettings {
        &self.settings
    }

    /// Opens the namespace that the container runtime names.
    pub(crate) fn open_pod(&self, path: &str) -> Result<NetworkNamespace, NamespaceError> {
        let path = self.root.join(path.trim_start_matches('/'));
        NetworkNamespace::open_pod(&path, &self.reserved)
    }

    /// Replaces the rules for probes by those for the pods that are known.
    pub(crate) fn write_probe_rules(&self) -> Result<(), NetworkError> {
        // Held while rules are written, so that older ones do not replace newer ones.
        let probed = self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&probed)
    }

    fn write(&self, probed: &BTreeMap<IpAddr, String>) -> Result<(), NetworkError> {
        let addresses = probed.keys().copied().collect();
        self.in_node(|| probes::replace(&self.settings, &addresses))
    }

    /// Marks probes of the addresses of a pod. Its former addresses are forgotten.
    pub(crate) fn probe(&self, uid: &str, addresses: &[IpAddr]) -> Result<(), NetworkError> {
        let mut probed = self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        let before = probed.clone();
        probed.retain(|_, owner| owner != uid);
        probed.extend(addresses.iter().map(|address| (*address, uid.to_owned())));
        if *probed == before {
            return Ok(());
        }
        let written = self.write(&probed);
        if written.is_err() {
            *probed = before;
        }
        written
    }

    /// Ends [`probe`](Self::probe). An address that another pod has by now stays.
    pub(crate) fn forget(&self, uid: &str) -> Result<(), NetworkError> {
        self.probe(uid, &[])
    }

    /// Removes the rules for probes.
    pub(crate) fn remove_probe_rules(&self) -> Result<(), NetworkError> {
        self.in_node(probes::remove)
    }

    fn in_node(&self, change: impl FnOnce() -> Result<(), ApplyError> + Send) -> Result<(), NetworkError> {
        match &self.node {
            Some(namespace) => Ok(namespace.run(change)??),
            None => Ok(change()?),
        }
    }

    /// The namespace of the oldest process of a pod, as its control group names it. It has to have an address of the pod: a
    /// process of a pod may be in the namespace of another one.
    pub(crate) fn find(&self, pod: &NodePod) -> Result<NetworkNamespace, NetworkError> {
        let proc = self.root.join("proc");
        let failed = |error| NetworkError::Proc { path: proc.clone(), error };
        let mut oldest: Option<(u64, NetworkNamespace)> = None;
        let mut seen = BTreeSet::new();
        for entry in std::fs::read_dir(&proc).map_err(failed)? {
            let directory = entry.map_err(failed)?.path();
            // Processes end while they are read.
            let Some(started) = started(&directory) else { continue };
            let groups = std::fs::read_to_string(directory.join("cgroup")).unwrap_or_default();
            if !is_in_pod(&groups, &pod.uid) || oldest.as_ref().is_some_and(|(oldest, _)| *oldest <= started) {
                continue;
            }
            match NetworkNamespace::open_pod(&directory.join("ns/net"), &self.reserved) {
                Ok(namespace) if !seen.insert(namespace.id()) => {}
                Ok(namespace) if has_address(&namespace, &pod.addresses) => oldest = Some((started, namespace)),
                Ok(_) => warn!(pod = %pod.name, "a process of the pod is in a namespace without its addresses"),
                Err(error) => debug!(pod = %pod.name, %error, "network namespace of a process"),
            }
        }
        oldest.map(|(_, namespace)| namespace).ok_or(NetworkError::NotFound)
    }
}

fn has_address(namespace: &NetworkNamespace, addresses: &[IpAddr]) -> bool {
    let own = namespace.run(|| {
        let interfaces = getifaddrs().into_iter().flatten();
        let address = |interface: nix::ifaddrs::InterfaceAddress| -> Option<IpAddr> {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
        };
        interfaces.filter_map(address).collect::<BTreeSet<_>>()
    });
    own.is_ok_and(|own| addresses.iter().any(|address| own.contains(address)))
}

/// When a process started, in ticks since the start of the node. `None` if the directory is not one of a process.
fn started(directory: &Path) -> Option<u64> {
    directory.file_name()?.to_str()?.parse::<u32>().ok()?;
    let stat = std::fs::read_to_string(directory.join("stat")).ok()?;
    // The name of the program, in parentheses, may contain anything. The 20th field after it is `starttime`.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Whether a control group is one of a pod. Container runtimes write the UID with dashes, underscores or neither.
fn is_in_pod(groups: &str, uid: &str) -> bool {
    if uid.is_empty() {
        return false;
    }
    let (dashes, plain) = (format!("pod{uid}"), format!("pod{}", uid.replace('-', "")));
    let groups = groups.replace('_', "-");
    [dashes, plain].iter().any(|name| {
        groups.match_indices(name.as_str()).any(|(start, _)| {
            let next = groups[start + name.len()..].chars().next();
            !next.is_some_and(|next| next.is_ascii_alphanumeric())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_groups_of_all_drivers_are_recognised() {
        let uid = "2c48913c-b29f-11e7-9350-020968147796";
        for groups in [
            "0::/kubepods/burstable/pod2c48913c-b29f-11e7-9350-020968147796/9bca8d63d5fa",
            "0::/kubepods.slice/kubepods-pod2c48913c_b29f_11e7_9350_020968147796.slice/docker-9bca.scope",
            "1:name=systemd:/../../pod2c48913c-b29f-11e7-9350-020968147796/9bca",
            "0::/kubepods/pod2c48913cb29f11e79350020968147796",
        ] {
            assert!(is_in_pod(groups, uid), "{groups}");
        }
        for groups in ["0::/user.slice", "0::/kubepods/pod2c48913c-b29f-11e7-9350-0209681477960/a", ""] {
            assert!(!is_in_pod(groups, uid), "{groups}");
        }
        assert!(!is_in_pod("0::/kubepods/pod/a", ""));
    }

    #[test]
    fn start_of_a_process_is_read_behind_its_name() {
        let own = PathBuf::from(format!("/proc/{}", std::process::id()));
        assert!(started(&own).is_some());
        assert_eq!(started(Path::new("/proc/self")), None);
        let directory = tempfile::tempdir().expect("a directory");
        let process = directory.path().join("12");
        std::fs::create_dir(&process).expect("create");
        let stat = "12 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        std::fs::write(process.join("stat"), stat).expect("write");
        assert_eq!(started(&process), Some(777));
    }
}
