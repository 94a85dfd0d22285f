//! A directory of files that is followed: records of files, and a collection of their problems.
//!
//! `cargo run -p sluice-engine --example config_directory -- DIRECTORY` follows a directory until it is interrupted.
//! Without a directory it writes files into a temporary one, and ends.
//!
//! Each file `*.json` has backends by name, such as `{"web": {"host": "web.example", "weight": 3}}`. The example derives
//! the share of each backend.

#![expect(clippy::disallowed_methods, reason = "an example writes files and reads its arguments")]
#![expect(clippy::print_stdout, reason = "an example prints what it shows")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sluice_controller::{FolderHandle, FolderSource};
use sluice_engine::{Engine, EngineOptions, Published};

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
#[serde(deny_unknown_fields)]
struct Backend {
    host: String,
    weight: u32,
}

/// A running controller. It stops when this is dropped.
struct Controller {
    engine: Engine,
    /// The share of each backend, in percent.
    shares: Published<String, u32>,
    /// The problem of each file that has one, by path.
    problems: Published<String, String>,
    _files: FolderHandle,
}

fn start(directory: &Path) -> Result<Controller, Box<dyn std::error::Error>> {
    let (engine, (backends, problems_in, shares, problems)) = Engine::start(EngineOptions::default(), |builder| {
        builder.dataflow("backends", |g| {
            let (backends_in, backends) = g.input::<String, Backend>("backends");
            let (problems_in, problems) = g.input::<String, String>("problems");
            let total = g.singleton("total", |deps| {
                let backends = deps.on(&backends);
                move |cx| Some(cx.all(&backends).iter().map(|(_, backend)| u64::from(backend.weight)).sum::<u64>())
            });
            let shares = backends.derive("shares", |deps| {
                let total = deps.on(&total);
                move |cx, _, backend: &Backend| {
                    let total = cx.get(&total, &()).filter(|total| **total > 0)?;
                    u32::try_from(u64::from(backend.weight) * 100 / *total).ok()
                }
            });
            (backends_in, problems_in, shares.publish(), problems.publish())
        })
    });
    let parse = |_: &Path, text: &str| -> serde_json::Result<Vec<(String, Backend)>> {
        Ok(serde_json::from_str::<BTreeMap<String, Backend>>(text)?.into_iter().collect())
    };
    let files = FolderSource::new(directory, backends, parse).with_problems(problems_in).start()?;
    Ok(Controller { engine, shares, problems, _files: files })
}

impl Controller {
    /// The shares and the problems at one epoch, as text.
    fn state(&self) -> Vec<String> {
        self.engine.flush();
        let snapshot = self.engine.snapshot();
        let shares = snapshot.iter(&self.shares).map(|(name, share)| format!("{name}: {share} %"));
        let name = |path: &str| Path::new(path).file_name().map(|name| name.display().to_string()).unwrap_or_default();
        let problems = snapshot.iter(&self.problems).map(|(path, reason)| format!("{}: {reason}", name(path)));
        shares.chain(problems).collect()
    }

    /// Waits until the state is as expected.
    fn wait_for(&self, is_expected: impl Fn(&[String]) -> bool) -> Result<Vec<String>, String> {
        let mut feed = self.engine.feed();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let state = self.state();
            if is_expected(&state) {
                return Ok(state);
            }
            if Instant::now() > deadline {
                return Err(format!("not reached: {state:?}"));
            }
            feed.next_timeout(Duration::from_secs(1));
        }
    }
}

/// Runs the example in a directory of its own. Returns the states that it has reached.
pub(crate) fn run() -> Result<Vec<Vec<String>>, Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text);
    write("web.json", r#"{"web": {"host": "web.example", "weight": 3}}"#)?;
    let controller = start(directory.path())?;
    let mut states = vec![controller.state()];

    write("api.json", r#"{"api": {"host": "api.example", "weight": 1}}"#)?;
    states.push(controller.wait_for(|state| state.len() == 2)?);
    // The file keeps its last valid records. The problem disappears when it is corrected.
    write("api.json", r#"{"api": {"host": "api.example"}}"#)?;
    states.push(controller.wait_for(|state| state.len() == 3)?);
    write("api.json", r#"{"api": {"host": "api.example", "weight": 9}}"#)?;
    states.push(controller.wait_for(|state| state.len() == 2)?);
    std::fs::remove_file(directory.path().join("web.json"))?;
    states.push(controller.wait_for(|state| state.len() == 1)?);
    Ok(states)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(directory) = std::env::args_os().nth(1) else {
        run()?.iter().for_each(|state| println!("{}", state.join(", ")));
        return Ok(());
    };
    let controller = start(Path::new(&directory))?;
    let mut feed = controller.engine.feed();
    while feed.next_timeout(Duration::MAX).is_some() {
        println!("{}", controller.state().join(", "));
    }
    Ok(())
}
