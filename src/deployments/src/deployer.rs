//! Which Gateways have to be written, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use sluice_engine::{Batch, Engine, Feed};
use sluice_graph::Handles;
use sluice_inject::{DeployedObject, GatewayContext};
use sluice_kube::{Api, Backoff, KubeOptions, Term, TermEnded, WatchStates, chain};
use sluice_model::gateway_api::{DeployedKind, GatewayDeployment};
use sluice_model::{ObjectKey, Text};
use sluice_tasks::{FailedAttempts, sleep_until_due};
use sluice_webhook::InjectionConfiguration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::findings::Findings;
use crate::stored::{DeployedId, StoredObjects};
use crate::watches;
use crate::writer::{Applied, ObjectWriter};

/// Time for which the configuration of the injector has to stay the same: templates and mesh config arrive one after the other,
/// and each change of the pods of a Deployment replaces them.
const SETTLE_TIME: Duration = Duration::from_millis(500);
/// Shortest time between two writes of a Gateway that changes by other clients cause. Another controller may undo each write.
const MIN_REWRITE_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two checks of an object that belongs to another owner, which is not watched.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Status codes with which an API server refuses an object, so that another one is needed, or another right.
const REFUSALS: [u16; 3] = [400, 403, 422];
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(30);

/// Settings of the deployment controller.
#[derive(Clone)]
pub struct DeployerSettings {
    /// Id of the local cluster.
    pub cluster: Text,
    /// The owner of the fields that are written: the name of the controller of routers.
    pub field_manager: String,
    /// Whether proxies in pods of applications may be native sidecars (W07). Only templates of users read it.
    pub native_sidecars: bool,
    /// Limits of lists and watches.
    pub options: KubeOptions,
    /// States of the watched collections.
    pub states: WatchStates,
}

/// Deploys the proxies of Gateways while its replica leads.
pub struct GatewayDeployer {
    engine: Engine,
    handles: Handles,
    feed: Feed,
    injection: Arc<InjectionConfiguration>,
    loaded: watch::Receiver<u64>,
    settings: DeployerSettings,
    writer: ObjectWriter,
    findings: Findings,
    failures: FailedAttempts,
    gateways: BTreeMap<ObjectKey, WantedGateway>,
    /// All inputs of the graph are synced.
    synced: bool,
    /// Version of the API server.
    kubernetes_version: u32,
}

/// A Gateway for which proxies are deployed.
struct WantedGateway {
    deployment: Arc<GatewayDeployment>,
    /// Time of the next attempt to write it; `None` if all is written.
    due: Option<Instant>,
    written: Option<Instant>,
    /// Attempts in a row that have failed.
    failures: u32,
    /// Why nothing is deployed, as it was logged last.
    problem: String,
    /// What was applied: hashes of the request, and of the stored object after it.
    applied: BTreeMap<DeployedId, (u64, u64)>,
}

/// The result of an attempt to write a Gateway.
enum Outcome {
    Written,
    /// The templates or the parameters of the Gateway have to change first.
    Invalid(String),
    /// The others are written.
    Incomplete {
        /// Objects of these names belong to others.
        occupied: Vec<DeployedId>,
        /// Objects that the API server refuses, with its reason.
        refused: Vec<(DeployedId, String)>,
    },
    Failed(kube::Error),
}

impl GatewayDeployer {
    /// Deploys what the graph of `engine` derives, by the templates of `injection`, through `client`.
    #[must_use]
    pub fn new(
        client: Client,
        engine: Engine,
        handles: Handles,
        injection: Arc<InjectionConfiguration>,
        settings: DeployerSettings,
    ) -> Self {
        let feed = engine.feed().only(&handles.gateway_deployments).only(&handles.proxy_configs);
        let stored = StoredObjects::default();
        let writer = ObjectWriter { client, stored, field_manager: settings.field_manager.clone() };
        let findings = Findings::new(handles.inputs.component_rejects.clone());
        Self {
            engine,
            handles,
            feed,
            findings,
            failures: FailedAttempts::of("deployment controller"),
            loaded: injection.loaded(),
            injection,
            settings,
            writer,
            gateways: BTreeMap::new(),
            synced: false,
            kubernetes_version: 0,
        }
    }

    /// Runs until the term or the engine ends.
    pub async fn run(mut self, term: impl Into<Term>) {
        let term = term.into();
        if self.read_version(&term).await.is_err() {
            return;
        }
        let mut watches = JoinSet::new();
        self.follow(&term, &mut watches).await;
        watches.shutdown().await;
    }

    /// Starts the watches of deployed objects.
    fn watch(&self) -> JoinSet<()> {
        let DeployerSettings { cluster, options, states, .. } = &self.settings;
        let api = Api::new(self.writer.client.clone(), cluster.clone(), *options, states.clone());
        watches::start(&api, *options, &self.writer.stored)
    }

    async fn read_version(&mut self, term: &Term) -> Result<(), TermEnded> {
        let mut backoff = Backoff::new(FIRST_RETRY, MAX_RETRY);
        loop {
            match term.write(self.writer.server_version()).await? {
                Ok(version) => {
                    self.kubernetes_version = version;
                    return Ok(());
                }
                Err(error) => {
                    if let Some(failures) = self.failures.count() {
                        warn!(
                            error = chain(&error),
                            failures, "failed to read the version of the API server, retrying; reported once a minute"
                        );
                    }
                }
            }
            tokio::select! {
                () = term.ended().cancelled() => return Err(TermEnded),
                () = tokio::time::sleep(backoff.failed()) => {}
            }
        }
    }

    async fn follow(&mut self, term: &Term, watches: &mut JoinSet<()>) {
        let stored = self.writer.stored.clone();
        loop {
            let due = self.is_ready().then(|| self.gateways.values().filter_map(|gateway| gateway.due).min()).flatten();
            tokio::select! {
                () = term.ended().cancelled() => return,
                batch = self.feed.next() => match batch {
                    Some(batch) => self.receive(&batch),
                    None => return,
                },
                // The configuration outlives the receiver.
                _ = self.loaded.changed() => self.schedule_all(Instant::now() + SETTLE_TIME),
                () = stored.changed() => self.schedule_changed(),
                () = sleep_until_due(due) => {}
            }
            // A cluster without Gateways is not watched.
            if watches.is_empty() && self.synced && !self.gateways.is_empty() {
                *watches = self.watch();
            }
            if self.is_ready() && self.write_due(term).await.is_err() {
                return;
            }
        }
    }

    /// Whether what is deployed, the templates and the stored objects are known.
    fn is_ready(&self) -> bool {
        self.synced && self.writer.stored.all_listed() && self.injection.injector().is_some()
    }

    fn receive(&mut self, batch: &Batch) {
        let now = Instant::now();
        for event in batch.events(&self.handles.gateway_deployments) {
            let key = (*event.key).clone();
            match event.new {
                Some(deployment) => {
                    let gateway = self.gateways.entry(key).or_insert_with(|| WantedGateway::new(deployment.clone()));
                    gateway.deployment = deployment;
                    (gateway.due, gateway.failures) = (Some(now), 0);
                }
                // The objects stay: they are deleted with the Gateway that owns them, or another controller has taken them.
                None => {
                    self.gateways.remove(&key);
                    self.findings.retract(&key);
                }
            }
        }
        // Once all is read, the injector may not have received the mesh config yet.
        let is_first_synced = batch.all_synced() && !self.synced;
        self.synced |= batch.all_synced();
        if is_first_synced || batch.events(&self.handles.proxy_configs).next().is_some() {
            self.schedule_all(now + SETTLE_TIME);
        }
    }

    fn schedule_all(&mut self, due: Instant) {
        self.gateways.values_mut().for_each(|gateway| gateway.due = Some(due));
    }

    /// Schedules the Gateways of which another client has changed or deleted an object.
    fn schedule_changed(&mut self) {
        for (namespace, name) in self.writer.stored.take_changed() {
            let key = ObjectKey::new(self.settings.cluster.clone(), namespace, name);
            let Some(gateway) = self.gateways.get_mut(&key) else { continue };
            let earliest = gateway.written.map(|written| written + MIN_REWRITE_INTERVAL);
            let due = earliest.unwrap_or_else(Instant::now).max(Instant::now());
            gateway.due = Some(gateway.due.map_or(due, |known| known.min(due)));
        }
    }

    /// Writes the Gateway that has been due for the longest time. The next one is written after changes that have arrived meanwhile.
    async fn write_due(&mut self, term: &Term) -> Result<(), TermEnded> {
        let due = self.gateways.iter().filter_map(|(key, gateway)| Some((gateway.due?, key)));
        let first = due.min().filter(|(due, _)| *due <= Instant::now());
        let Some(key) = first.map(|(_, key)| key.clone()) else { return Ok(()) };
        let Some(mut gateway) = self.gateways.remove(&key) else { return Ok(()) };
        let outcome = self.write(term, &key, &mut gateway).await;
        if let Ok(outcome) = &outcome
            && gateway.finish(&key, outcome, &self.failures)
        {
            // The graph reports what is wrong with the parameters that a Gateway refers to.
            let is_reported = !gateway.deployment.problem.is_empty();
            self.findings.report(&key, if is_reported { "" } else { &gateway.problem });
        }
        self.gateways.insert(key, gateway);
        outcome.map(|_| ())
    }

    /// Writes the objects of a Gateway that are not as they should be.
    async fn write(&self, term: &Term, key: &ObjectKey, gateway: &mut WantedGateway) -> Result<Outcome, TermEnded> {
        let deployment = gateway.deployment.clone();
        let objects = match self.render(&deployment) {
            Ok(objects) => objects,
            Err(problem) => return Ok(Outcome::Invalid(problem)),
        };
        let uid = deployment.gateway.uid.as_str();
        let (mut occupied, mut refused) = (Vec::new(), Vec::new());
        let mut wanted = BTreeSet::new();
        for object in &objects {
            let id =
                DeployedId { kind: object.kind, namespace: key.namespace.clone(), name: object.name.as_str().into() };
            wanted.insert(id.clone());
            let request = request_hash(object);
            let stored = self.writer.stored.get(&id).map(|stored| stored.content);
            let known = gateway.applied.get(&id);
            if known.is_some_and(|(applied, content)| *applied == request && Some(*content) == stored) {
                continue;
            }
            match term.write(self.writer.apply(&id, object, uid)).await? {
                Ok(Applied::Stored(content)) => {
                    debug!(gateway = %key, kind = ?id.kind, name = %id.name, "wrote an object of a Gateway");
                    gateway.applied.insert(id, (request, content));
                    gateway.written = Some(Instant::now());
                }
                Ok(Applied::NotOurs) => occupied.push(id),
                Err(kube::Error::Api(status)) if REFUSALS.contains(&status.code) => refused.push((id, status.message)),
                Err(error) => return Ok(Outcome::Failed(error)),
            }
        }
        gateway.applied.retain(|id, _| wanted.contains(id));
        let is_written = occupied.is_empty() && refused.is_empty();
        Ok(if is_written { Outcome::Written } else { Outcome::Incomplete { occupied, refused } })
    }

    fn render(&self, deployment: &GatewayDeployment) -> Result<Vec<DeployedObject>, String> {
        let Some(injector) = self.injection.injector() else {
            return Err("no valid injection configuration has been read yet".to_owned());
        };
        let snapshot = self.engine.snapshot();
        let proxy_configs: Vec<_> = snapshot.iter(&self.handles.proxy_configs).map(|(_, resource)| resource).collect();
        let context = GatewayContext {
            proxy_configs: &proxy_configs,
            cluster: &self.settings.cluster,
            kubernetes_version: self.kubernetes_version,
            native_sidecars: self.settings.native_sidecars,
        };
        injector.render_gateway(deployment, &context)
    }
}

impl WantedGateway {
    fn new(deployment: Arc<GatewayDeployment>) -> Self {
        let (due, written) = (None, None);
        Self { deployment, due, written, failures: 0, problem: String::new(), applied: BTreeMap::new() }
    }

    /// Decides when the Gateway is written again, and logs what is wrong. Returns whether that has changed.
    fn finish(&mut self, key: &ObjectKey, outcome: &Outcome, failed: &FailedAttempts) -> bool {
        let failures = std::mem::take(&mut self.failures);
        let problem = match outcome {
            Outcome::Written => {
                self.due = None;
                String::new()
            }
            Outcome::Invalid(problem) => {
                self.due = None;
                problem.clone()
            }
            Outcome::Incomplete { occupied, refused } => {
                match refused.is_empty() {
                    true => self.due = Some(Instant::now() + RECHECK_INTERVAL),
                    // What refuses it may change: a quota, a policy of admission, or the rights of the control plane.
                    false => self.retry(failures),
                }
                problem_of(occupied, refused)
            }
            Outcome::Failed(error) => {
                self.retry(failures);
                if let Some(failures) = failed.count() {
                    warn!(
                        gateway = %key, error = chain(error), failures,
                        "failed to write an object of a Gateway, retrying; reported once a minute"
                    );
                }
                return false;
            }
        };
        let has_changed = problem != self.problem;
        if has_changed && !problem.is_empty() {
            warn!(gateway = %key, problem, "a Gateway is not deployed as its configuration requests");
        }
        self.problem = problem;
        has_changed
    }

    fn retry(&mut self, failures: u32) {
        self.failures = failures.saturating_add(1);
        self.due = Some(Instant::now() + Backoff::after(failures, FIRST_RETRY, MAX_RETRY));
    }
}

/// Why objects are not as the Gateway requests them.
fn problem_of(occupied: &[DeployedId], refused: &[(DeployedId, String)]) -> String {
    let name = |id: &DeployedId| format!("{} {}", id.kind.names().1, id.name);
    // The proxies can use an account of others.
    let occupied = occupied.iter().filter(|id| id.kind != DeployedKind::ServiceAccount);
    let occupied: Vec<String> = occupied.map(name).collect();
    let mut problems: Vec<String> =
        refused.iter().map(|(id, reason)| format!("the API server refuses the {}: {reason}", name(id))).collect();
    if !occupied.is_empty() {
        let names = occupied.join(", ");
        problems.push(format!("objects of these names exist that are not those of the Gateway: {names}"));
    }
    problems.join("; ")
}

fn request_hash(object: &DeployedObject) -> u64 {
    let mut hasher = DefaultHasher::new();
    object.object.to_string().hash(&mut hasher);
    hasher.finish()
}
