//! Variables of traces, with the names of the OpenTelemetry specification.

use crate::ValueKind::{Choice, List, Number, Text};
use crate::{Variable, followed};

/// Traces.
pub(super) const TRACES: &[Variable] = &[
    followed(
        "OTEL_TRACES_EXPORTER",
        Choice(&["none", "otlp"]),
        "none",
        "With `otlp`, each change of objects is a trace, from its arrival to the last acknowledgement",
    ),
    followed(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        Text,
        "http://localhost:4318",
        "URL of the collector that receives traces, without the path `/v1/traces`",
    ),
    followed("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", Text, "", "URL that receives traces, with its path"),
    followed("OTEL_EXPORTER_OTLP_PROTOCOL", Choice(&["http/protobuf"]), "http/protobuf", "Protocol of OTLP"),
    followed(
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        Choice(&["http/protobuf"]),
        "http/protobuf",
        "Protocol of OTLP for traces",
    ),
    followed(
        "OTEL_EXPORTER_OTLP_HEADERS",
        List,
        "",
        "Headers of requests to the collector: NAME=VALUE, percent-encoded",
    ),
    followed("OTEL_EXPORTER_OTLP_TIMEOUT", Number, "10000", "Time limit of a request to the collector in milliseconds"),
    followed(
        "OTEL_EXPORTER_OTLP_CERTIFICATE",
        Text,
        "",
        "PEM file with the roots that verify the collector; those of the system by default",
    ),
    followed(
        "OTEL_TRACES_SAMPLER",
        Choice(&[
            "always_on",
            "always_off",
            "traceidratio",
            "parentbased_always_on",
            "parentbased_always_off",
            "parentbased_traceidratio",
        ]),
        "parentbased_always_on",
        "Which changes are traced; no change has a parent",
    ),
    followed(
        "OTEL_TRACES_SAMPLER_ARG",
        Number,
        "1",
        "Share of the changes that are traced with `traceidratio`, from 0 to 1",
    ),
    followed("OTEL_SERVICE_NAME", Text, "istiod", "Name of the service in traces"),
    followed("OTEL_RESOURCE_ATTRIBUTES", List, "", "Further attributes of the resource in traces: KEY=VALUE"),
];
