//! A page in headless Chromium, over the DevTools protocol.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// Time limit of a step.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of a message: pictures are large.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The directory with Chromium and axe-core. `None`, with a message, if they are not installed.
pub(super) fn programs() -> Option<PathBuf> {
    let programs = std::env::var_os("SLUICE_BROWSER").map(PathBuf::from);
    if programs.is_none() {
        eprintln!("skipped: `make test-console` runs this in Chromium");
    }
    programs
}

/// A page in a Chromium of its own. It ends when this is dropped.
pub(super) struct BrowserPage {
    socket: WebSocketStream<TcpStream>,
    session: String,
    last_id: u64,
    /// Events since the last navigation.
    events: Vec<Value>,
    axe: String,
    _process: Child,
    _profile: TempDir,
}

impl BrowserPage {
    /// Starts Chromium with a blank page.
    pub(super) async fn open(programs: &Path) -> Result<Self> {
        let axe =
            std::fs::read_to_string(programs.join("node_modules/axe-core/axe.min.js")).context("read axe-core")?;
        let profile = tempfile::tempdir()?;
        let mut process = Command::new(programs.join("chromium"))
            .args([
                "--headless=new",
                "--remote-debugging-port=0",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
            ])
            // The tests run as root, in containers without namespaces of users; the pages are our own.
            .args(["--no-sandbox", "--disable-dev-shm-usage", "--force-device-scale-factor=1"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start Chromium")?;
        let errors = process.stderr.take().context("take the output of Chromium")?;
        let address =
            tokio::time::timeout(STEP_TIMEOUT, listening(errors)).await.context("Chromium does not listen")??;
        let authority = address.strip_prefix("ws://").and_then(|rest| rest.split('/').next()).context("an address")?;
        let stream = TcpStream::connect(authority).await.context("connect to Chromium")?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES));
        let (socket, _) = tokio_tungstenite::client_async_with_config(&address, stream, Some(config)).await?;
        let mut page = Self {
            socket,
            session: String::new(),
            last_id: 0,
            events: Vec::new(),
            axe,
            _process: process,
            _profile: profile,
        };
        let target = page.call("Target.createTarget", json!({"url": "about:blank"})).await?;
        let attached =
            page.call("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true})).await?;
        page.session = attached["sessionId"].as_str().context("a session")?.to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            page.call(&format!("{domain}.enable"), json!({})).await?;
        }
        page.call("Emulation.setFocusEmulationEnabled", json!({"enabled": true})).await?;
        page.call(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": 1200, "height": 800, "deviceScaleFactor": 1, "mobile": false}),
        )
        .await?;
        Ok(page)
    }

    /// Sends a command and returns its result. Events that arrive meanwhile are kept.
    async fn call(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.last_id += 1;
        let id = self.last_id;
        let mut command = json!({"id": id, "method": method, "params": parameters});
        if !self.session.is_empty() {
            command["sessionId"] = self.session.as_str().into();
        }
        self.socket.send(Message::text(command.to_string())).await.context("send a command")?;
        loop {
            let message = self.receive().await.with_context(|| method.to_owned())?;
            if message["id"] == id {
                ensure!(message["error"].is_null(), "{method}: {}", message["error"]);
                return Ok(message["result"].clone());
            }
            self.events.push(message);
        }
    }

    async fn receive(&mut self) -> Result<Value> {
        loop {
            let message = tokio::time::timeout(STEP_TIMEOUT, self.socket.next()).await.context("Chromium is silent")?;
            match message.context("Chromium has ended")?? {
                Message::Text(text) => return Ok(serde_json::from_str(&text)?),
                Message::Close(_) => bail!("Chromium has closed the connection"),
                _ => {}
            }
        }
    }

    /// Opens an address and waits until the page and its scripts are loaded.
    pub(super) async fn navigate(&mut self, address: &str) -> Result<()> {
        self.events.clear();
        let result = self.call("Page.navigate", json!({"url": address})).await?;
        ensure!(result["errorText"].is_null(), "{address}: {}", result["errorText"]);
        self.loaded().await
    }

    /// Waits until the next page is loaded that an action has opened.
    async fn loaded(&mut self) -> Result<()> {
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.receive().await?;
            self.events.push(event);
        }
        Ok(())
    }

    /// Runs a script that opens another page, such as one that sends a form.
    pub(super) async fn follow(&mut self, script: &str) -> Result<()> {
        self.events.clear();
        self.evaluate(script).await?;
        self.loaded().await
    }

    /// The value of an expression; of a promise, what it resolves to.
    pub(super) async fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", parameters).await?;
        ensure!(result["exceptionDetails"].is_null(), "{}", result["exceptionDetails"]);
        Ok(result["result"]["value"].clone())
    }

    /// Errors and warnings in the console of the page since it was opened.
    pub(super) fn console_errors(&self) -> Vec<String> {
        let is_error = |event: &&Value| match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => true,
            "Runtime.consoleAPICalled" => {
                matches!(event["params"]["type"].as_str(), Some("error" | "warning" | "assert"))
            }
            "Log.entryAdded" => event["params"]["entry"]["level"] == "error",
            _ => false,
        };
        self.events.iter().filter(is_error).map(|event| event["params"].to_string()).collect()
    }

    /// The colour scheme that the user prefers: `light` or `dark`.
    pub(super) async fn set_scheme(&mut self, scheme: &str) -> Result<()> {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features})).await?;
        Ok(())
    }

    pub(super) async fn press_tab(&mut self) -> Result<()> {
        for kind in ["rawKeyDown", "keyUp"] {
            let key = json!({"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9});
            self.call("Input.dispatchKeyEvent", key).await?;
        }
        Ok(())
    }

    /// The violations that axe-core finds, each with the elements.
    pub(super) async fn violations(&mut self) -> Result<Vec<String>> {
        let source = std::mem::take(&mut self.axe);
        let loaded = self.evaluate(&source).await;
        self.axe = source;
        loaded.context("run axe-core")?;
        let run = "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.map(violation => \
                   violation.id + ': ' + violation.nodes.map(node => node.html + ' ' + node.failureSummary).join('; ')))";
        let violations = self.evaluate(run).await?;
        let violations = violations.as_array().context("a list")?.iter();
        Ok(violations.filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// What the window shows, as a PNG.
    pub(super) async fn picture(&mut self) -> Result<Vec<u8>> {
        let picture = self.call("Page.captureScreenshot", json!({"format": "png"})).await?;
        Ok(STANDARD.decode(picture["data"].as_str().context("a picture")?)?)
    }
}

/// The address of the DevTools, which Chromium prints. What it prints later is discarded.
async fn listening(errors: tokio::process::ChildStderr) -> Result<String> {
    let mut lines = BufReader::new(errors).lines();
    let mut printed = Vec::new();
    while let Some(line) = lines.next_line().await? {
        if let Some((_, address)) = line.split_once("DevTools listening on ") {
            let address = address.trim().to_owned();
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok(address);
        }
        printed.push(line);
    }
    bail!("Chromium has ended: {}", printed.join("\n"))
}
