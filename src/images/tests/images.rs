//! Images of the built binaries: digests, reproduction, and programs that run from the unpacked files.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sluice_images::{Digest, FileSystem, Image, OWNER, cni, control_plane, proxy, write_archive};
use sluice_testkit::binary::workspace_binary;

/// The directory of the workspace's binaries, or `None` with a message.
fn binaries() -> Option<std::path::PathBuf> {
    let found = ["sluiced", "sluicectl", "sluice-agent", "sluice-cni"].map(workspace_binary);
    for binary in &found {
        if let Err(error) = binary {
            skip(&error.to_string());
            return None;
        }
    }
    found.into_iter().next()?.ok()?.parent().map(Path::to_owned)
}

fn skip(reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

/// The blob of a descriptor. Its digest and size are those of the descriptor.
fn blob(layout: &Path, descriptor: &Value) -> Vec<u8> {
    let digest = descriptor["digest"].as_str().expect("a digest");
    let bytes = std::fs::read(layout.join("blobs").join(digest.replace(':', "/"))).expect("a blob");
    assert_eq!(Digest::of(&bytes).to_string(), digest);
    assert_eq!(descriptor["size"], bytes.len());
    bytes
}

/// Unpacks the layers of an image. Returns its configuration.
fn unpack(layout: &Path, root: &Path) -> Value {
    let index = json(&std::fs::read(layout.join("index.json")).expect("an index"));
    let manifest = json(&blob(layout, &index["manifests"][0]));
    let config = json(&blob(layout, &manifest["config"]));
    let layers = manifest["layers"].as_array().expect("layers");
    for (layer, diff_id) in layers.iter().zip(config["rootfs"]["diff_ids"].as_array().expect("digests")) {
        let mut archive = Vec::new();
        flate2::read::GzDecoder::new(blob(layout, layer).as_slice()).read_to_end(&mut archive).expect("gzip");
        assert_eq!(Digest::of(&archive).to_string(), diff_id.as_str().expect("a digest"));
        let mut archive = tar::Archive::new(archive.as_slice());
        archive.set_preserve_ownerships(is_root());
        archive.set_preserve_permissions(true);
        for entry in archive.entries().expect("entries") {
            let mut entry = entry.expect("an entry");
            assert_eq!(entry.header().mtime().expect("a time"), 0);
            assert!(entry.unpack_in(root).expect("unpacked"), "the path is inside of the image");
        }
    }
    config
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| std::os::unix::fs::MetadataExt::uid(&process) == 0)
}

/// `chroot`, which is not on the image's `PATH`.
fn chroot() -> Command {
    let found = ["/usr/sbin/chroot", "/usr/bin/chroot"].into_iter().find(|path| Path::new(path).exists());
    Command::new(found.expect("coreutils are installed"))
}

/// The image's program in the unpacked files, as the image's user.
fn program(root: &Path, config: &Value) -> Command {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let mut command = chroot();
    command.arg(format!("--userspec={}", text(&config["config"]["User"]))).arg(root).env_clear();
    for variable in config["config"]["Env"].as_array().expect("variables") {
        let variable = text(variable);
        let (name, value) = variable.split_once('=').expect("NAME=VALUE");
        command.env(name, value);
    }
    command.arg(text(&config["config"]["Entrypoint"][0]));
    command
}

fn output(mut command: Command) -> String {
    let output = command.output().expect("run chroot");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a text")
}

/// A process that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

#[test]
fn control_plane_runs_from_the_unpacked_image() {
    let Some(binaries) = binaries() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let layout = directory.path().join("layout");
    control_plane(&binaries).expect("an image").write(&layout).expect("written");
    let root = directory.path().join("root");
    std::fs::create_dir(&root).expect("created");
    let config = unpack(&layout, &root);
    assert_eq!(config["config"]["User"], format!("{OWNER}:{OWNER}"));
    assert_eq!(config["config"]["Cmd"], serde_json::json!(["discovery"]));
    assert_eq!(config["config"]["Labels"]["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
    assert!(!root.join("bin/sh").exists() && root.join("etc/ssl/certs/ca-certificates.crt").exists());
    assert!(root.join("usr/local/bin/pilot-discovery").is_symlink());
    if !is_root() {
        skip("only root can change the root directory");
        return;
    }
    let mut version = program(&root, &config);
    version.arg("version");
    assert_eq!(output(version), format!("sluice {}\n", env!("CARGO_PKG_VERSION")));

    std::fs::create_dir(root.join("mesh")).expect("created");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
                   spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}\n";
    std::fs::write(root.join("mesh/service.yaml"), service).expect("written");
    let mut serve = program(&root, &config);
    serve.args(["discovery", "--configDir=/mesh", "--httpAddr=127.0.0.1:0", "--monitoringAddr=", "--httpsAddr="]);
    serve.args(["--grpcAddr=127.0.0.1:0", "--secureGRPCAddr=127.0.0.1:0"]).stdout(Stdio::piped());
    let mut running = Running(serve.spawn().expect("started"));
    let log = BufReader::new(running.0.stdout.take().expect("a log"));
    let (mut lines, mut address) = (log.lines(), None);
    while address.is_none() {
        let line = lines.next().expect("the log has the address").expect("a line");
        let is_http = line.contains("listening name=http ");
        address = is_http.then(|| line.split("address=").nth(1).expect("an address").trim().to_owned());
    }
    let address = address.expect("an address");
    let address = address.split_whitespace().next().expect("an address");
    let started = Instant::now();
    while !get(address, "/ready").starts_with("HTTP/1.1 200") {
        assert!(started.elapsed() < Duration::from_secs(60), "not ready: {}", get(address, "/ready"));
        std::thread::sleep(Duration::from_millis(50));
    }
    let services = get(address, "/debug/registryz");
    assert!(services.contains("web.shop.svc.cluster.local"), "{services}");
}

#[test]
fn agent_and_envoy_run_from_the_unpacked_image() {
    let Some(binaries) = binaries() else { return };
    let envoy = match sluice_testkit::pods::envoy::binary() {
        Ok(envoy) => envoy,
        Err(error) => return skip(&error.to_string()),
    };
    let directory = tempfile::tempdir().expect("a directory");
    let layout = directory.path().join("layout");
    proxy(&binaries, &envoy).expect("an image").write(&layout).expect("written");
    let root = directory.path().join("root");
    std::fs::create_dir(&root).expect("created");
    let config = unpack(&layout, &root);
    assert_eq!(config["config"]["Cmd"], serde_json::json!(["proxy", "sidecar"]));
    assert_eq!(std::fs::read_link(root.join("usr/local/bin/pilot-agent")).expect("a link"), Path::new("sluice-agent"));
    if !is_root() {
        skip("only root can change the root directory");
        return;
    }
    for directory in ["etc/istio/proxy", "var/lib/istio/data"] {
        let owner = std::fs::metadata(root.join(directory)).expect("a directory");
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), u32::try_from(OWNER).expect("a user"), "{directory}");
    }
    let mut version = program(&root, &config);
    version.arg("--version");
    assert!(output(version).contains(env!("CARGO_PKG_VERSION")));
    let mut version = chroot();
    version.arg(format!("--userspec={OWNER}:{OWNER}")).arg(&root).args(["/usr/local/bin/envoy", "--version"]);
    assert!(output(version).contains("version:"));
}

#[test]
fn cni_agent_and_its_tools_run_from_the_unpacked_image() {
    let Some(binaries) = binaries() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let layout = directory.path().join("layout");
    match cni(&binaries) {
        Ok(image) => image.write(&layout).expect("written"),
        Err(error) if error.to_string().contains("is not installed") => return skip(&error.to_string()),
        Err(error) => panic!("{error:#}"),
    };
    let root = directory.path().join("root");
    std::fs::create_dir(&root).expect("created");
    let config = unpack(&layout, &root);
    assert_eq!(config["config"]["User"], "0:0", "it enters network namespaces");
    assert_eq!(config["config"]["ExposedPorts"], serde_json::json!({"8000/tcp": {}, "15014/tcp": {}}));
    if !is_root() {
        skip("only root can change the root directory");
        return;
    }
    let mut version = program(&root, &config);
    version.arg("--version");
    assert!(output(version).contains(env!("CARGO_PKG_VERSION")));
    for (tool, argument, expected) in [("nft", "--version", "nftables v"), ("ip", "-V", "iproute2")] {
        let mut command = chroot();
        command.arg(&root).arg(format!("/usr/local/bin/{tool}")).arg(argument);
        assert!(output(command).contains(expected), "{tool}");
    }
}

#[test]
fn equal_files_give_equal_images() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, files: &[&str]| {
        let mut content = FileSystem::default();
        for file in files {
            content.text(file, file);
        }
        content.link("usr/bin/link", "../../a");
        content.executable("usr/bin/true", Path::new("/bin/true"));
        let image = Image {
            name: "test:1".to_owned(),
            description: "a test",
            layers: vec![("files", content)],
            entrypoint: "/usr/bin/true",
            arguments: Vec::new(),
            user: OWNER,
            ports: vec![80],
        };
        let layout = directory.path().join(name);
        let digest = image.write(&layout).expect("written");
        let file = layout.with_extension("tar");
        write_archive(&layout, &file).expect("archived");
        (digest, Digest::of(&std::fs::read(&file).expect("the archive")))
    };
    let first = write("first", &["a", "etc/b"]);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(write("second", &["etc/b", "a"]), first, "neither order nor time changes an image");
    assert_ne!(write("third", &["etc/b", "c"]), first);
    let config = {
        let root = directory.path().join("root");
        std::fs::create_dir(&root).expect("created");
        unpack(&directory.path().join("first"), &root)
    };
    assert_eq!(config["config"]["ExposedPorts"], serde_json::json!({"80/tcp": {}}));
}

#[test]
fn missing_binary_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let error = control_plane(directory.path()).map(|_| ()).expect_err("no binary").to_string();
    assert!(error.contains("sluiced does not exist"), "{error}");
}
