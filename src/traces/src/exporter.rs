//! Samples changes and sends their traces.

use opentelemetry::trace::SpanKind;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    IdGenerator as _, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample as _, SpanExporter as _,
};

use crate::change::{ChangeTrace, TraceId};
use crate::client::OtlpClient;
use crate::error::ExportError;
use crate::settings::TraceSettings;

/// Samples changes and sends their traces over OTLP (HTTP, protobuf).
#[derive(Debug)]
pub struct TraceExporter {
    exporter: opentelemetry_otlp::SpanExporter,
    sampler: Sampler,
    scope: InstrumentationScope,
}

impl TraceExporter {
    /// An exporter with these settings, of a program of this version.
    ///
    /// # Errors
    /// The client cannot be set up: TLS without roots, for example.
    pub fn new(settings: &TraceSettings, version: &str) -> Result<Self, ExportError> {
        let headers = settings
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(OtlpClient::new(settings)?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(settings.endpoint.as_str())
            .with_timeout(settings.timeout)
            .with_headers(headers.collect())
            .build();
        let mut exporter = exporter.map_err(|error| ExportError::Client(error.to_string()))?;
        let attributes = settings.attributes.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
        let resource = Resource::builder()
            .with_attributes(attributes.chain([KeyValue::new("service.version", version.to_owned())]))
            .with_service_name(settings.service.clone());
        exporter.set_resource(&resource.build());
        let scope = InstrumentationScope::builder("sluice").with_version(version.to_owned()).build();
        Ok(Self { exporter, sampler: Sampler::TraceIdRatioBased(settings.share), scope })
    }

    /// The id of the next trace, if the next change is one that is traced.
    #[must_use]
    pub fn sample(&self) -> Option<TraceId> {
        let id = RandomIdGenerator::default().new_trace_id();
        let result = self.sampler.should_sample(None, id, "change", &SpanKind::Internal, &[], &[]);
        (result.decision == SamplingDecision::RecordAndSample).then_some(TraceId(id))
    }

    /// Sends traces.
    ///
    /// # Errors
    /// The endpoint does not respond, or refuses them. They are not sent again.
    pub async fn export(&self, traces: &[ChangeTrace]) -> Result<(), ExportError> {
        let spans: Vec<_> = traces.iter().flat_map(|trace| trace.spans(&self.scope)).collect();
        if spans.is_empty() {
            return Ok(());
        }
        self.exporter.export(spans).await.map_err(|error| ExportError::Endpoint(error.to_string()))
    }
}
