//! Pods as network namespaces. Each has an address on a bridge, and iptables rules that redirect its traffic to its Envoy
//! as istio-init would (D09).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// Envoy runs as this user, whose traffic is not redirected.
pub const PROXY_UID: u32 = 1337;

static NETWORKS: AtomicU32 = AtomicU32::new(0);

/// A bridge with the pods' network behind it. Dropping it removes the namespaces and the bridge.
pub struct BridgeNetwork {
    bridge: String,
    /// Second and third octet of 10.a.b.0/24.
    net: (u8, u8),
    pods: Vec<String>,
}

/// The network of a pod.
#[derive(Clone, Debug)]
pub struct PodNet {
    /// Name of its network namespace. Without one, the pod is a process on a loopback address.
    pub namespace: Option<String>,
    /// The pod's address.
    pub ip: Ipv4Addr,
}

/// Whether this machine can run pods. If not, a warning is printed; in CI that is a failure.
///
/// # Panics
/// This is CI, and it cannot.
#[must_use]
pub fn pods_are_permitted() -> bool {
    match BridgeNetwork::new() {
        Ok(_) => true,
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "CI needs pods: {error:#}");
            eprintln!("\n*** SKIPPED, NOT PASSED: no pods here: {error:#} ***\n");
            false
        }
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn ip(arguments: &str) -> Result<()> {
    run(Command::new("ip").args(arguments.split_whitespace()))
}

impl BridgeNetwork {
    /// Makes the bridge.
    ///
    /// # Errors
    /// Network namespaces, bridges or iptables are not permitted or not installed here; the message says which.
    pub fn new() -> Result<Self> {
        let process = std::process::id();
        let serial = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let number = process.wrapping_mul(31).wrapping_add(serial);
        // 10.64.0.0/10 does not overlap the pod and service ranges of the sample objects.
        let net = (64 + u8::try_from(number % 64).unwrap_or(0), u8::try_from(number / 64 % 256).unwrap_or(0));
        let bridge = format!("slc{}x{serial}", process % 1_000_000);
        run(Command::new("iptables").arg("--version")).context("iptables is needed for pods")?;
        ip(&format!("link add {bridge} type bridge")).context("a network bridge is needed for pods")?;
        let network = Self { bridge, net, pods: Vec::new() };
        ip(&format!("addr add {}/24 dev {}", network.gateway(), network.bridge))?;
        ip(&format!("link set {} up", network.bridge))?;
        Ok(network)
    }

    /// The host's address on the bridge, at which pods reach the control plane.
    #[must_use]
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.net.0, self.net.1, 1)
    }

    /// The address of pod number `index`, counted from 0.
    #[must_use]
    pub fn pod_ip(&self, index: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.net.0, self.net.1, 10 + index)
    }

    /// Adds pod number `index`: a namespace with an address and a default route.
    ///
    /// # Errors
    /// The namespace or its interface cannot be made.
    pub fn add_pod(&mut self, index: u8) -> Result<PodNet> {
        let namespace = format!("{}p{index}", self.bridge);
        let (inside, outside) = (format!("{}i{index}", self.bridge), format!("{}o{index}", self.bridge));
        let address = self.pod_ip(index);
        ip(&format!("netns add {namespace}")).context("network namespaces are needed for pods")?;
        self.pods.push(namespace.clone());
        ip(&format!("link add {outside} type veth peer name {inside}"))?;
        ip(&format!("link set {inside} netns {namespace}"))?;
        ip(&format!("link set {outside} master {} up", self.bridge))?;
        ip(&format!("-n {namespace} link set {inside} name eth0"))?;
        ip(&format!("-n {namespace} addr add {address}/24 dev eth0"))?;
        ip(&format!("-n {namespace} link set lo up"))?;
        ip(&format!("-n {namespace} link set eth0 up"))?;
        ip(&format!("-n {namespace} route add default via {}", self.gateway()))?;
        Ok(PodNet { namespace: Some(namespace), ip: address })
    }

    /// Sets the names that pods started afterwards can resolve.
    ///
    /// # Errors
    /// The file that `ip netns exec` mounts over `/etc/hosts` cannot be written.
    pub fn set_hosts(&self, hosts: &BTreeMap<String, Ipv4Addr>) -> Result<()> {
        let mut text = "127.0.0.1 localhost\n".to_owned();
        for (host, address) in hosts {
            let _ = writeln!(text, "{address} {host}");
        }
        for pod in &self.pods {
            let directory = etc_directory(pod);
            std::fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
            std::fs::write(directory.join("hosts"), &text).context("write the pod's hosts")?;
            // DNS queries do not leave the machine.
            std::fs::write(directory.join("resolv.conf"), "nameserver 127.0.0.1\n").context("write its resolv.conf")?;
        }
        Ok(())
    }
}

/// Directory of the files that `ip netns exec` mounts over those of `/etc` in the namespace.
fn etc_directory(namespace: &str) -> PathBuf {
    PathBuf::from("/etc/netns").join(namespace)
}

impl Drop for BridgeNetwork {
    fn drop(&mut self) {
        for pod in &self.pods {
            let _ = ip(&format!("netns del {pod}"));
            let _ = std::fs::remove_dir_all(etc_directory(pod));
        }
        let _ = ip(&format!("link del {}", self.bridge));
    }
}

impl PodNet {
    /// Pod number `index` without a namespace: no traffic is redirected, and everything runs as the caller.
    #[must_use]
    pub fn loopback(index: u8) -> Self {
        Self { namespace: None, ip: Ipv4Addr::new(127, 0, 1, 10 + index) }
    }

    /// A command that runs `program` inside the pod as user `uid`.
    #[must_use]
    pub fn command(&self, uid: u32, program: &Path) -> tokio::process::Command {
        let entry = self.entry(uid, None);
        let Some((first, others)) = entry.split_first() else { return tokio::process::Command::new(program) };
        let mut command = tokio::process::Command::new(first);
        command.args(others).arg(program);
        command
    }

    /// The arguments that precede a program which runs inside the pod as user `uid`, with a name of the host of its own if there is one.
    /// None if the pod has no namespace.
    #[must_use]
    pub fn entry(&self, uid: u32, hostname: Option<&str>) -> Vec<String> {
        let Some(namespace) = &self.namespace else { return Vec::new() };
        let mut entry = ["ip", "netns", "exec", namespace].map(str::to_owned).to_vec();
        if let Some(hostname) = hostname {
            let named = ["unshare", "--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", hostname];
            entry.extend(named.map(str::to_owned));
        }
        entry.extend(["setpriv", "--clear-groups"].map(str::to_owned));
        entry.extend([format!("--reuid={uid}"), format!("--regid={uid}"), "--".to_owned()]);
        entry
    }

    /// Removes all rules of nftables.
    ///
    /// # Errors
    /// nft fails, or the pod has no namespace.
    pub fn remove_rules(&self) -> Result<()> {
        let namespace = self.namespace.as_ref().context("only namespaces have rules")?;
        run(Command::new("ip").args(["netns", "exec", namespace, "nft", "flush", "ruleset"]))
    }

    /// A command that runs `program` inside the pod as the caller's user, for whom no file of other users is readable unless
    /// its mode permits it: without capabilities, root has no other rights than any user.
    #[must_use]
    pub fn command_without_capabilities(&self, program: &Path) -> tokio::process::Command {
        let Some(namespace) = &self.namespace else { return tokio::process::Command::new(program) };
        let mut command = tokio::process::Command::new("ip");
        command.args(["netns", "exec", namespace, "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]);
        command.arg(program);
        command
    }

    /// Sets a parameter of the kernel, such as `net.ipv4.ip_unprivileged_port_start`.
    ///
    /// # Errors
    /// The kernel rejects it, or the pod has no namespace.
    pub fn set_kernel_parameter(&self, name: &str, value: &str) -> Result<()> {
        let namespace = self.namespace.as_ref().context("only namespaces have parameters of their own")?;
        let file = format!("/proc/sys/{}", name.replace('.', "/"));
        run(Command::new("ip").args(["netns", "exec", namespace, "sh", "-c", "echo \"$0\" > \"$1\"", value, &file]))
    }

    /// Connects to a port of the pod's own loopback.
    ///
    /// # Errors
    /// The address does not accept the connection, or the namespace cannot be entered.
    pub async fn connect(&self, port: u16) -> Result<TcpStream> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let Some(namespace) = self.namespace.clone() else {
            return TcpStream::connect(address).await.with_context(|| format!("connect to {address}"));
        };
        let (sender, connected) = oneshot::channel();
        // A thread that enters a namespace stays in it, so this is a new thread.
        std::thread::spawn(move || sender.send(connect_inside(&namespace, address)));
        let stream = connected.await.context("the thread ended without a result")??;
        stream.set_nonblocking(true).context("set up the connection")?;
        TcpStream::from_std(stream).context("register the connection")
    }

    /// Redirects outbound traffic of the application to port 15001 and inbound traffic to port 15006, except Envoy's own
    /// traffic.
    ///
    /// # Errors
    /// iptables fails, or the pod has no namespace.
    pub fn redirect(&self) -> Result<()> {
        let namespace = self.namespace.as_ref().context("traffic is redirected in namespaces only")?;
        let rules = [
            "-N TO_OUTBOUND",
            "-N TO_INBOUND",
            "-A TO_OUTBOUND -p tcp -j REDIRECT --to-ports 15001",
            "-A TO_INBOUND -p tcp -j REDIRECT --to-ports 15006",
            // Inbound traffic, except to the proxy's own ports.
            "-A PREROUTING -p tcp -m multiport --dports 15008,15020,15021,15090 -j RETURN",
            "-A PREROUTING -p tcp -j TO_INBOUND",
            // From Envoy to the application, in passthrough.
            "-A OUTPUT -o lo -s 127.0.0.6/32 -j RETURN",
            // Calls from Envoy to a service of its own pod pass through the inbound listener.
            &format!("-A OUTPUT -o lo ! -d 127.0.0.1/32 -p tcp -m owner --uid-owner {PROXY_UID} -j TO_INBOUND"),
            &format!("-A OUTPUT -o lo -m owner ! --uid-owner {PROXY_UID} -j RETURN"),
            &format!("-A OUTPUT -m owner --uid-owner {PROXY_UID} -j RETURN"),
            "-A OUTPUT -d 127.0.0.1/32 -j RETURN",
            "-A OUTPUT -p tcp -j TO_OUTBOUND",
        ];
        for rule in rules {
            run(Command::new("ip")
                .args(["netns", "exec", namespace, "iptables", "-w", "-t", "nat"])
                .args(rule.split_whitespace()))?;
        }
        Ok(())
    }
}

/// Connects from within a namespace. The thread stays in it.
#[cfg(target_os = "linux")]
fn connect_inside(namespace: &str, address: SocketAddr) -> Result<std::net::TcpStream> {
    let file = std::fs::File::open(Path::new("/run/netns").join(namespace)).context("open the namespace")?;
    nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).context("enter the namespace")?;
    std::net::TcpStream::connect(address).with_context(|| format!("connect to {address} in {namespace}"))
}

#[cfg(not(target_os = "linux"))]
fn connect_inside(_: &str, _: SocketAddr) -> Result<std::net::TcpStream> {
    bail!("this system has no network namespaces")
}
