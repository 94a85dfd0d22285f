use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use sluice_tasks::faults;
use sluice_watch::Handle;
use tempfile::TempDir;

use super::*;

const CHAIN: &str = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"ptp"},{"type":"portmap"}]}"#;

struct Node {
    directory: TempDir,
    settings: InstallSettings,
}

fn node() -> Node {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(&path).expect("create");
        path
    };
    let account = path("account");
    std::fs::write(account.join("token"), "secret").expect("write");
    std::fs::write(account.join("ca.crt"), "roots").expect("write");
    let plugin = PluginConfig {
        cni_version: "0.3.1".to_owned(),
        name: NAME.to_owned(),
        kind: NAME.to_owned(),
        ..PluginConfig::default()
    };
    let kubeconfig = KubeconfigSettings {
        service_account_dir: account,
        ca_file: None,
        skip_verification: false,
        protocol: "https".to_owned(),
        host: "fd00::1".to_owned(),
        port: "443".to_owned(),
        mode: 0o600,
    };
    let settings = InstallSettings {
        net_dir: path("net.d"),
        bin_dir: path("bin"),
        run_dir: path("run"),
        conf_name: String::new(),
        owned_file: None,
        chained: true,
        mode: 0o600,
        plugin,
        kubeconfig,
    };
    Node { directory, settings }
}

impl Node {
    fn installer(&self) -> Installer {
        Installer::new(self.settings.clone(), Arc::default())
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.settings.net_dir.join(name), text).expect("write");
    }

    fn read(&self, name: &str) -> Value {
        let text = std::fs::read_to_string(self.settings.net_dir.join(name)).expect(name);
        serde_json::from_str(&text).expect("JSON")
    }

    fn types(&self, name: &str) -> Vec<String> {
        let list = self.read(name);
        let plugins = list["plugins"].as_array().expect("plugins");
        plugins.iter().map(|plugin| plugin["type"].as_str().expect("a type").to_owned()).collect()
    }
}

#[test]
fn entry_is_appended_once_and_removed() {
    let node = node();
    node.write("20-later.conflist", r#"{"plugins":[{"type":"other"}]}"#);
    node.write("10-net.conflist", CHAIN);
    node.write("05-broken.conflist", "{");
    let path = node.settings.net_dir.join("10-net.conflist");
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("chmod");
    let installer = node.installer();
    installer.install().expect("install");
    installer.install().expect("install again");
    assert_eq!(node.types("10-net.conflist"), ["ptp", "portmap", "istio-cni"]);
    assert_eq!(node.types("20-later.conflist"), ["other"]);
    let mode = std::fs::metadata(&path).expect("stat").permissions().mode();
    assert_eq!(mode & 0o777, 0o644, "the file of the primary plugin keeps its mode");
    assert!(node.settings.bin_dir.join("istio-cni").exists());
    installer.remove();
    assert_eq!(node.read("10-net.conflist"), serde_json::from_str::<Value>(CHAIN).expect("JSON"));
    assert!(!node.settings.bin_dir.join("istio-cni").exists());
    assert!(!node.settings.run_dir.join(KUBECONFIG).exists());
}

#[test]
fn configuration_of_one_plugin_becomes_a_list() {
    let node = node();
    node.write("10-net.conf", r#"{"cniVersion":"0.2.0","name":"net","type":"bridge"}"#);
    let installer = node.installer();
    installer.install().expect("install");
    assert!(!node.settings.net_dir.join("10-net.conf").exists());
    assert_eq!(node.types("10-net.conflist"), ["bridge", "istio-cni"]);
    installer.install().expect("install again");
    assert_eq!(node.types("10-net.conflist"), ["bridge", "istio-cni"]);
}

#[test]
fn owned_file_is_a_copy_and_leaves_the_primary_one() {
    let mut node = node();
    node.settings.owned_file = Some("02-istio-cni.conflist".to_owned());
    node.write("10-net.conflist", CHAIN);
    let installer = node.installer();
    installer.install().expect("install");
    installer.install().expect("install again");
    assert_eq!(node.types("02-istio-cni.conflist"), ["ptp", "portmap", "istio-cni"]);
    assert_eq!(node.types("10-net.conflist"), ["ptp", "portmap"]);
    installer.remove();
    assert!(!node.settings.net_dir.join("02-istio-cni.conflist").exists());
}

#[test]
fn missing_primary_plugin_is_an_error_that_names_the_directory() {
    let node = node();
    let error = format!("{:#}", node.installer().install().expect_err("no file"));
    assert!(error.contains("net.d: no configuration of a primary plugin"), "{error}");
}

#[test]
fn kubeconfig_has_the_token_and_the_roots() {
    let node = node();
    let text = node.settings.kubeconfig.render().expect("a kubeconfig");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["clusters"][0]["cluster"]["server"], "https://[fd00::1]:443");
    assert_eq!(value["clusters"][0]["cluster"]["certificate-authority-data"], json!("cm9vdHM="));
    assert_eq!(value["users"][0]["user"]["token"], "secret");
    let settings = KubeconfigSettings { host: String::new(), ..node.settings.kubeconfig.clone() };
    assert_eq!(settings.render().expect_err("no host").to_string(), "KUBERNETES_SERVICE_HOST is not set");
}

#[test]
fn entry_that_another_program_removes_is_written_again() {
    let node = node();
    node.write("10-net.conflist", CHAIN);
    let ready = Arc::new(AtomicBool::new(false));
    let installer = Arc::new(Installer::new(node.settings.clone(), Arc::clone(&ready)));
    let mut watch = Watch::new(|_| true);
    let handle = watch.handle();
    let running = Arc::clone(&installer);
    let thread = std::thread::spawn(move || running.run(&mut watch));
    let installed = || {
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::fs::read_to_string(node.settings.net_dir.join("10-net.conflist"))
            .is_ok_and(|text| !text.contains("istio-cni"))
        {
            assert!(Instant::now() < deadline, "the entry is not written");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    installed();
    node.write("10-net.conflist", CHAIN);
    installed();
    handle.stop();
    thread.join().expect("the installer ends");
    assert!(ready.load(Ordering::Relaxed));
    assert!(node.directory.path().exists());
}

/// A thread that installs on a node.
struct RunningInstaller {
    node: Node,
    installer: Arc<Installer>,
    ready: Arc<AtomicBool>,
    /// While it is set, the thread panics when a file changes.
    panics: Arc<AtomicBool>,
    stop: Handle,
    thread: NamedThread,
}

impl RunningInstaller {
    /// Starts the thread, and waits until the plugin is installed.
    fn start() -> Self {
        let node = node();
        node.write("10-net.conflist", CHAIN);
        let (ready, panics) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let installer = Arc::new(Installer::new(node.settings.clone(), Arc::clone(&ready)));
        let injected = Arc::clone(&panics);
        let watch = Watch::new(move |_| {
            assert!(!injected.load(Ordering::Relaxed), "injected by the test");
            true
        });
        let stop = watch.handle();
        let thread = installer.start(watch).expect("a thread");
        let running = Self { node, installer, ready, panics, stop, thread };
        running.wait_until_installed();
        running
    }

    fn wait_until_installed(&self) {
        wait_until("the plugin is installed", || self.is_ready());
        assert_eq!(self.node.types("10-net.conflist"), ["ptp", "portmap", "istio-cni"]);
    }

    /// Makes the thread panic after another program has removed the entry.
    fn panic_at_removed_entry(&self) {
        self.panics.store(true, Ordering::Relaxed);
        // In one step: half a file would also make the node unready.
        let next = self.node.directory.path().join("next");
        std::fs::write(&next, CHAIN).expect("write");
        std::fs::rename(next, self.node.settings.net_dir.join("10-net.conflist")).expect("rename");
        wait_until("the node is not ready", || !self.is_ready());
        self.panics.store(false, Ordering::Relaxed);
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Number of restarts of the thread, of all tests.
fn restarts() -> u64 {
    let (mut registry, mut text) = (Registry::default(), String::new());
    sluice_tasks::register(&mut registry);
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("encoded");
    let prefix = format!("sluice_task_restarts_total{{task=\"{INSTALL_THREAD}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&prefix)).map_or(0, |count| count.parse().expect("a number"))
}

#[test]
fn installer_that_panics_is_not_ready_and_installs_again() {
    // At its start, and while it waits for changes.
    faults::inject_panic(INSTALL_THREAD);
    let running = RunningInstaller::start();
    wait_until("the panic is counted", || restarts() > 0);
    running.panic_at_removed_entry();
    running.wait_until_installed();
    running.stop.stop();
    running.thread.join();
    assert!(running.ready.load(Ordering::Relaxed), "the plugin is still installed");
}

#[test]
fn plugin_that_is_removed_after_a_panic_of_the_installer_stays_removed() {
    let running = RunningInstaller::start();
    running.panic_at_removed_entry();
    // The thread waits for its restart.
    running.stop.stop();
    running.installer.remove();
    running.thread.join();
    assert_eq!(running.node.types("10-net.conflist"), ["ptp", "portmap"]);
    let settings = &running.node.settings;
    assert!(!settings.bin_dir.join(NAME).exists() && !settings.run_dir.join(KUBECONFIG).exists());
    assert!(!running.ready.load(Ordering::Relaxed));
}
