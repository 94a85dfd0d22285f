//! Which providers observe a side of a proxy (T01): the mesh's defaults.

use std::collections::BTreeMap;

use sluice_model::{CustomTag, Decimal, ExtensionProvider, ProviderKind, ProviderService, Text};

use super::settings::Settings;
use crate::filter::Class;

/// A tag of spans.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TraceTag {
    /// A constant, variable or header.
    Plain(CustomTag),
    /// Text with Envoy's substitutions.
    Format(Text),
}

/// Tracing of one side of a proxy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TracingSpec {
    /// Where spans go.
    pub provider: Option<ExtensionProvider>,
    /// No tracing at all.
    pub disabled: bool,
    /// Percent of requests; `None` is as configured for the proxy.
    pub sampling: Option<Decimal>,
    /// Tags by name; empty is as configured for the proxy.
    pub custom_tags: BTreeMap<Text, TraceTag>,
    /// Request ids decide what is sampled.
    pub sample_by_request_id: bool,
    /// Tags about the mesh.
    pub istio_tags: bool,
    /// The context is not handed on.
    pub no_context_propagation: bool,
}

/// An access log in use.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogProvider {
    /// Where entries go.
    pub provider: ExtensionProvider,
    /// CEL expression an entry must satisfy, empty if none.
    pub filter: Text,
}

impl Settings {
    /// The provider of that name; its case does not matter.
    pub(crate) fn provider(&self, name: &str) -> Option<&ExtensionProvider> {
        self.mesh.extension_providers.iter().find(|provider| provider.name.eq_ignore_ascii_case(name))
    }

    /// Tracing of a side by Telemetry or default providers; `None` leaves it to the mesh config's own switches.
    pub(crate) fn tracing(&self, _class: Class) -> Option<TracingSpec> {
        let name = self.mesh.default_providers.tracing.first()?;
        let provider = self.provider(name).cloned();
        Some(TracingSpec {
            disabled: provider.is_none(),
            provider,
            sampling: None,
            custom_tags: BTreeMap::new(),
            sample_by_request_id: true,
            istio_tags: true,
            no_context_propagation: false,
        })
    }

    /// Access logs of a side by Telemetry or default providers; `None` leaves it to the mesh config's own switches.
    pub(crate) fn logging(&self, _class: Class) -> Option<Vec<LogProvider>> {
        let names = &self.mesh.default_providers.access_logging;
        if names.is_empty() {
            return None;
        }
        let mut names = names.clone();
        names.sort();
        names.dedup();
        let known = names.iter().filter_map(|name| self.provider(name));
        Some(known.map(|provider| LogProvider { provider: provider.clone(), filter: Text::default() }).collect())
    }
}

/// Services that tracers and access logs of a provider are sent to, or secrets are asked from: those [`Settings::collectors`] should name.
#[must_use]
pub fn collector_services(kind: &ProviderKind) -> Vec<&ProviderService> {
    match kind {
        ProviderKind::Zipkin { service, .. }
        | ProviderKind::Datadog { service, .. }
        | ProviderKind::SkyWalking { service, .. }
        | ProviderKind::HttpAccessLogService { service, .. }
        | ProviderKind::TcpAccessLogService { service, .. }
        | ProviderKind::OpenTelemetryLog { service, .. }
        | ProviderKind::Sds { service, .. } => vec![service],
        ProviderKind::OpenTelemetry(otel) => {
            let sampler = otel.dynatrace_sampler.as_ref().and_then(|sampler| sampler.api.as_ref());
            std::iter::once(&otel.service).chain(sampler.map(|(service, _)| service)).collect()
        }
        _ => Vec::new(),
    }
}
