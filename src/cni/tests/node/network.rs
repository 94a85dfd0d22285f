//! A node, a pod and another pod as network namespaces. Nothing in the namespace of the test is changed.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use sluice_redirection::namespace::NetworkNamespace;

/// The address of the pod.
pub(crate) const POD: &str = "10.200.1.2";
/// The address of the node in the network of the pod.
const NODE: &str = "10.200.1.1";
/// The address of the peer.
pub(crate) const OUTSIDE: &str = "10.200.2.2";

const TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Network {
    pub(crate) node: NetworkNamespace,
    pub(crate) pod: NetworkNamespace,
    pub(crate) peer: NetworkNamespace,
    pub(crate) pod_name: String,
    pub(crate) node_name: String,
    /// The state of the namespace of the pod before any rules.
    pub(crate) initial: String,
    names: Vec<String>,
}

impl Network {
    /// `None`, with a message, where namespaces or nftables are not available.
    pub(crate) fn new(test: &str) -> Result<Option<Self>> {
        let runs = |program: &str, argument: &str| Command::new(program).arg(argument).output().is_ok();
        let available = runs("nft", "--version") && runs("ip", "-Version");
        let is_root = rustix::process::geteuid().is_root();
        if !available || !is_root {
            ensure!(std::env::var_os("CI").is_none(), "CI needs root, nft and ip");
            eprintln!("\n*** SKIPPED, NOT PASSED: root, nft and ip are necessary ***\n");
            return Ok(None);
        }
        let name = |part: &str| format!("sc{}{test}{part}", std::process::id());
        let names = vec![name("n"), name("p"), name("o")];
        for name in &names {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        let [node_name, pod_name, peer_name] = [0, 1, 2].map(|index| names[index].clone());
        for (other, network) in [(&pod_name, 1), (&peer_name, 2)] {
            ip(&format!("-n {node_name} link add eth{network} type veth peer name eth0 netns {other}"))?;
            ip(&format!("-n {node_name} addr add 10.200.{network}.1/24 dev eth{network}"))?;
            ip(&format!("-n {node_name} link set eth{network} up"))?;
            ip(&format!("-n {other} addr add 10.200.{network}.2/24 dev eth0"))?;
            ip(&format!("-n {other} link set eth0 up"))?;
            ip(&format!("-n {other} route add default via 10.200.{network}.1"))?;
        }
        let open = |name: &String| NetworkNamespace::open(&file(name));
        let (node, pod, peer) = (open(&node_name)?, open(&pod_name)?, open(&peer_name)?);
        node.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
        let mut network = Self { node, pod, peer, pod_name, node_name, initial: String::new(), names };
        network.initial = network.state(&network.pod_name)?;
        Ok(Some(network))
    }

    /// Rules and routes of a namespace.
    pub(crate) fn state(&self, name: &str) -> Result<String> {
        let commands = ["nft list ruleset", "ip rule", "ip route show table all", "ip -6 rule"];
        let mut state = String::new();
        for command in commands {
            let output = Command::new("ip").args(["netns", "exec", name, "sh", "-c", command]).output()?;
            ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
            // The kernel adds addresses of the link some time after it is up.
            let of_link = |line: &&str| line.contains("fe80:") || line.contains("ff00:");
            let text = String::from_utf8_lossy(&output.stdout);
            text.lines().filter(|line| !of_link(line)).for_each(|line| state.extend([line, "\n"]));
        }
        Ok(state)
    }

    /// Loads rules of nftables into a namespace.
    pub(crate) fn load(&self, name: &str, rules: &str) -> Result<()> {
        let command = format!("nft -f - <<'RULES'\n{rules}\nRULES");
        let output = Command::new("ip").args(["netns", "exec", name, "sh", "-c", &command]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Answers every connection with a text.
    pub(crate) fn listen(&self, namespace: &NetworkNamespace, port: u16, text: &'static str) -> Result<TextServer> {
        let listener = namespace.run(|| TcpListener::bind(("0.0.0.0", port)))?.context("listen")?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((mut stream, _)) => drop(stream.write_all(text.as_bytes())),
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        Ok(TextServer { stop, thread: Some(thread) })
    }

    /// The text that answers a connection from a namespace.
    pub(crate) fn call(&self, from: &NetworkNamespace, address: &str, port: u16) -> Result<String> {
        let address = SocketAddr::new(address.parse()?, port);
        let text: std::io::Result<String> = from.run(|| {
            let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            if text.is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(text) }
        })?;
        text.with_context(|| format!("connect to {address}"))
    }

    /// The same from the pod with the mark of ztunnel.
    pub(crate) fn call_marked(&self, address: &str, port: u16) -> Result<String> {
        self.call_by_python("", "s.setsockopt(socket.SOL_SOCKET, 36, 0x539)", address, port)
    }

    /// The same from the pod as another user and group.
    pub(crate) fn call_as(&self, user: u32, address: &str, port: u16) -> Result<String> {
        // The owner of a socket is the user who creates it.
        let become_user = format!("os.setgroups([]); os.setgid({user}); os.setuid({user})");
        self.call_by_python(&become_user, "", address, port)
    }

    /// The text that answers a connection from the node to the pod, after the kernel of the pod has got a packet of an open connection
    /// with the same addresses and ports. Its Ethernet frame is a broadcast: the kernel tracks the connection, but sends no reset.
    pub(crate) fn call_after_stray_packet(&self, source_port: u16, port: u16) -> Result<String> {
        let program = format!(
            "{STRAY_PACKET}\nsend('eth1', '{NODE}', {source_port}, '{POD}', {port})\ns = socket.socket(); s.settimeout(2)\n\
             s.bind(('{NODE}', {source_port})); s.connect(('{POD}', {port})); print(s.recv(99).decode(), end='')"
        );
        run_python(&self.node_name, &program)
    }

    fn call_by_python(&self, before: &str, prepare: &str, address: &str, port: u16) -> Result<String> {
        let program = format!(
            "import os, socket\n{before}\ns = socket.socket(); s.settimeout(2); {prepare}\n\
             s.connect(('{address}', {port})); print(s.recv(99).decode(), end='')"
        );
        run_python(&self.pod_name, &program)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// A listener, until it is dropped.
pub(crate) struct TextServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for TextServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A listener whose connections stay open.
pub(crate) struct PodListener(TcpListener);

impl PodListener {
    pub(crate) fn new(namespace: &NetworkNamespace, port: u16) -> Result<Self> {
        let listener = namespace.run(|| TcpListener::bind(("0.0.0.0", port)))?.context("listen")?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Opens a connection from a namespace, which this listener has to accept.
    pub(crate) fn connect(&self, from: &NetworkNamespace, address: &str, port: u16) -> Result<OpenConnection> {
        let address = SocketAddr::new(address.parse()?, port);
        let client = from.run(|| TcpStream::connect_timeout(&address, TIMEOUT))?.context("connect")?;
        let deadline = Instant::now() + TIMEOUT;
        let server = loop {
            match self.0.accept() {
                Ok((server, _)) => break server,
                Err(error) if Instant::now() > deadline => {
                    return Err(error).with_context(|| format!("the listener gets no connection to {address}"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        server.set_nonblocking(false)?;
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(TIMEOUT))?;
        }
        Ok(OpenConnection { client, server })
    }
}

/// Both ends of an open connection.
pub(crate) struct OpenConnection {
    client: TcpStream,
    server: TcpStream,
}

impl OpenConnection {
    /// Sends a byte in each direction. The server begins.
    pub(crate) fn exchange(&mut self) -> Result<()> {
        let mut byte = [0];
        self.server.write_all(b"s")?;
        self.client.read_exact(&mut byte).context("the client receives nothing")?;
        self.client.write_all(b"c")?;
        self.server.read_exact(&mut byte).context("the server receives nothing")
    }
}

/// Sends a TCP packet with the flag ACK in a broadcast frame.
const STRAY_PACKET: &str = r"
import socket, struct
def checksum(data):
    total = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return struct.pack('!H', ~total & 0xffff)
def send(link, source, source_port, target, port):
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    tcp = struct.pack('!HHIIBBHHH', source_port, port, 1, 1, 5 << 4, 0x10, 1000, 0, 0)
    tcp = tcp[:16] + checksum(addresses + struct.pack('!HH', 6, len(tcp)) + tcp) + tcp[18:]
    ip = struct.pack('!BBHHHBBH', 0x45, 0, 40, 1, 0, 64, 6, 0) + addresses
    ip = ip[:10] + checksum(ip) + ip[12:]
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0800)
    frames.bind((link, 0x0800))
    frames.send(b'\xff' * 6 + frames.getsockname()[4] + b'\x08\x00' + ip + tcp)
";

/// What a program prints in a network namespace.
fn run_python(namespace: &str, program: &str) -> Result<String> {
    let output = Command::new("ip").args(["netns", "exec", namespace, "python3", "-c", program]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The file of a namespace.
pub(crate) fn file(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output()?;
    if !output.status.success() {
        bail!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
