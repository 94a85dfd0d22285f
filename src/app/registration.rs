//! Registration and health of workloads outside Kubernetes.

use std::sync::Arc;
use std::time::SystemTime;

use kube::Client;
use sluice_kube::Lock;
use sluice_model::Proxy;
use sluice_sources::kube::{
    CleanupOptions, EntryCleaner, RegistrarHandle, RegistrationOptions, WorkloadRegistrar, WorkloadStream,
};
use sluice_xds::{StreamRefusal, WorkloadObserver};

use super::{App, options};

impl App {
    /// Writes WorkloadEntries of connected proxies, and removes those of proxies that have gone.
    pub(super) fn register_workloads(&mut self, client: Client) {
        let (features, identity) = (&self.config.features, &self.config.identity);
        if !features.register_workloads && !features.workload_health {
            return;
        }
        let registration = RegistrationOptions {
            controller: if identity.pod_name.is_empty() { "sluiced".into() } else { identity.pod_name.clone() },
            registers: features.register_workloads,
            reports_health: features.workload_health,
            checks_identity: features.workload_identity_check,
        };
        let cleanup = CleanupOptions {
            grace_period: features.workload_grace_period,
            max_connection_age: self.config.serving.max_connection_age,
        };
        let metrics = self.graph.metrics.registration.clone();
        let (registrar, handle) = WorkloadRegistrar::new(client.clone(), registration.clone(), metrics.clone());
        self.discovery.set_workload_observer(Arc::new(Observer(handle)));
        self.tasks.spawn("workload registrar", registrar.run(self.tasks.stop()));
        let (election, stop) = (options::election(&self.config, Some(client.clone())), self.tasks.stop());
        let (engine, entries) = (self.graph.engine.clone(), self.graph.handles.workload_entries.clone());
        let cluster = identity.cluster.clone();
        self.tasks.spawn_restarted("workload cleaner", move || {
            let (engine, entries, registration) = (engine.clone(), entries.clone(), registration.clone());
            let metrics = metrics.clone();
            let cluster = (cluster.clone(), client.clone());
            let clean = move |term| {
                let (feed, entries) = (engine.feed(), entries.clone());
                let metrics = metrics.clone();
                EntryCleaner::new(cluster.clone(), registration.clone(), cleanup, feed, entries, metrics).run(term)
            };
            election.clone().lead(Lock::workload_cleanup(), stop.clone(), clean)
        });
    }
}

/// Reports the streams of workloads outside Kubernetes to the registrar.
struct Observer(RegistrarHandle);

impl WorkloadObserver for Observer {
    fn connected(&self, id: u64, proxy: &Arc<Proxy>, connected_at: SystemTime, refusal: StreamRefusal) {
        if self.0.concerns(proxy) {
            let refuse = Arc::new(move |reason| refusal.refuse(reason));
            self.0.connected(WorkloadStream { id, proxy: proxy.clone(), connected_at, refuse });
        }
    }

    fn disconnected(&self, id: u64, proxy: &Arc<Proxy>) {
        if self.0.concerns(proxy) {
            self.0.disconnected(proxy.clone(), id);
        }
    }

    fn reported(&self, id: u64, proxy: &Arc<Proxy>, health: Result<(), String>) {
        if self.0.concerns(proxy) {
            self.0.reported(proxy.clone(), id, health);
        }
    }
}
