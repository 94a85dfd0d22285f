//! Serves proxies.

use sluice_auth::TrustDomain;
use sluice_model::MeshConfig;
use sluice_sources::gateway_names;
use sluice_xds::Outputs;
use tokio::sync::oneshot;
use tracing::info;

use super::ports::{Listeners, ReservedPort};
use super::security::Security;
use super::{App, AppError, options, security};

impl App {
    /// Keeps the store at the engine's latest epoch. Returns the condition that the first epoch is in the store.
    pub(super) fn fill_store(&mut self) -> impl Future<Output = ()> + use<> {
        let (engine, handles) = (self.graph.engine.clone(), &self.graph.handles);
        let outputs = Outputs {
            resources: handles.resources.clone(),
            segments: handles.segments.clone(),
            scopes: handles.scopes.clone(),
        };
        let (ready, is_ready) = oneshot::channel();
        let store = self.store.clone();
        let metrics = self.graph.metrics.xds.clone();
        let following = async move { sluice_xds::follow(&engine, &outputs, store, &metrics, ready).await };
        self.tasks.spawn_until_stop("store", following);
        if self.config.features.resolve_gateway_names {
            let (engine, names) = (self.graph.engine.clone(), self.graph.handles.gateway_names.clone());
            let resolved = self.graph.handles.inputs.resolved_names.clone();
            self.tasks.spawn_restarted_until_stop("gateway names", move || {
                let (engine, names, resolved) = (engine.clone(), names.clone(), resolved.clone());
                async move { gateway_names::follow(&engine, &names, resolved, gateway_names::look_up).await }
            });
        }
        async move {
            if is_ready.await.is_err() {
                // The task of the store has ended: that is reported as a failed task.
                std::future::pending().await
            }
        }
    }

    /// Loads or generates the certificate authority. `None` if the process is stopped first.
    pub(super) async fn open_security(&mut self) -> Result<Option<Security>, AppError> {
        let mesh = self.graph.mesh_config();
        let trust_domain = TrustDomain::new(mesh.trust_domain.clone());
        let interrupted = self.tasks.interrupted();
        let domain = trust_domain.clone();
        let opening = async {
            self.open_signer(&mesh).await?;
            let metrics = (self.graph.metrics.authority.clone(), &self.graph.metrics.reviews);
            Security::open(&self.config, &self.clients, &mesh, domain, metrics, self.signer.clone()).await
        };
        let security = tokio::select! {
            opened = opening => Some(opened?),
            // The API server may not respond.
            () = interrupted => self.tasks.wait_for(std::future::pending()).await?,
        };
        let Some(security) = security else { return Ok(None) };
        self.pending.authority.take();
        let following = self.graph.follow_mesh_config(move |mesh| trust_domain.set(mesh.trust_domain.clone()));
        self.tasks.spawn_until_stop("trust domain", following);
        Ok(Some(security))
    }

    /// Loads or generates the certificate authority, unless it is open.
    pub(super) async fn open_signer(&mut self, mesh: &MeshConfig) -> Result<(), AppError> {
        if self.signer.is_none() {
            let metrics = &self.graph.metrics.authority;
            let opening = security::open_signer(&self.config, &self.clients, mesh, metrics, &mut self.tasks);
            self.signer = opening.await?;
        }
        Ok(())
    }

    /// Serves the ports of proxies.
    pub(super) fn serve_proxies(&mut self, mut security: Security, listeners: Listeners) -> Result<(), AppError> {
        self.pending.first_epoch.take();
        let open = |port: Option<ReservedPort>| port.map(ReservedPort::listen).transpose();
        let (grpc, secure_grpc) = (open(listeners.grpc)?, open(listeners.secure_grpc)?);
        // Connections are accepted by the runtime in which the port is opened.
        let https = {
            let _runtime = self.http_runtime.handle().enter();
            open(listeners.https)?
        };
        let discovery = self.discovery.clone();
        let removing = move || discovery.clone().keep_removing_expired_proxies();
        self.tasks.spawn_restarted_until_stop("stream registry", removing);
        // Fails only if it is already set.
        let _ = self.admin.callers.set(security.authenticators());
        let election = options::election(&self.config, self.local_client.clone());
        security.follow(&self.graph, (self.local_client.clone(), election), &self.config, &mut self.tasks)?;
        if let Some(listener) = https {
            let failed_handshakes = self.graph.metrics.webhooks.failed_handshakes.clone();
            security.serve_webhooks(
                listener,
                self.webhook_router(),
                failed_handshakes,
                &self.config,
                (&mut self.tasks, self.http_runtime.handle()),
            )?;
        }
        security.serve(secure_grpc, self.discovery.clone(), &self.config, &mut self.tasks)?;
        if let Some(listener) = grpc {
            let (options, stop) = (options::server_options(&self.config), self.tasks.stop());
            let authenticators = options::plaintext_authenticators(&self.config.features);
            let shutdown = async move { stop.cancelled().await };
            let serving = sluice_xds::serve(listener, self.discovery.clone(), options, authenticators, shutdown);
            self.tasks.spawn_fallible("grpc port", serving);
        }
        self.pending.ports.take();
        info!(epoch = self.graph.engine.snapshot().epoch().0, "ready");
        Ok(())
    }
}
