//! Settings from the variables of the OpenTelemetry specification.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::Url;

/// The endpoint of a collector on the same host.
const DEFAULT_ENDPOINT: &str = "http://localhost:4318";
/// The path of traces below `OTEL_EXPORTER_OTLP_ENDPOINT`.
const TRACES_PATH: &str = "v1/traces";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_SERVICE: &str = "istiod";

/// How traces are sampled and where they are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSettings {
    /// URL that receives traces, with the path.
    pub endpoint: Url,
    /// Headers of requests.
    pub headers: HeaderMap,
    /// Time limit of a request.
    pub timeout: Duration,
    /// PEM file with the roots that the endpoint's certificate is verified with; those of the system if `None`.
    pub roots: Option<PathBuf>,
    /// Share of the changes that are traced, 0 to 1.
    pub share: f64,
    /// Name of the service, and other attributes of the resource.
    pub service: String,
    /// Further attributes of the resource.
    pub attributes: Vec<(String, String)>,
}

/// An invalid variable.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{variable}: {reason}")]
pub struct TraceSettingError {
    /// Its name.
    pub variable: &'static str,
    /// What is wrong and what is accepted, a lower-case fragment.
    pub reason: String,
}

impl TraceSettings {
    /// The settings of variables; `None` unless `OTEL_TRACES_EXPORTER` is `otlp`. An empty variable is as an absent one.
    ///
    /// # Errors
    /// The first invalid variable. Variables of traces are not read while traces are off.
    pub fn from_variables(
        variable: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Option<Self>, TraceSettingError> {
        let read = |name| variable(name).filter(|value| !value.is_empty());
        match read("OTEL_TRACES_EXPORTER").as_deref() {
            None | Some("none") => return Ok(None),
            Some("otlp") => {}
            Some(other) => return Err(invalid("OTEL_TRACES_EXPORTER", format!("{other:?} is not one of none, otlp"))),
        }
        let protocols = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        if let Some((name, protocol)) = protocols.into_iter().find_map(|name| Some((name, read(name)?)))
            && protocol != "http/protobuf"
        {
            let reason = format!("{protocol:?} is not supported, only http/protobuf (port 4318 of a collector)");
            return Err(invalid(name, reason));
        }
        Ok(Some(Self {
            endpoint: endpoint(&read)?,
            headers: headers(&read)?,
            timeout: timeout(&read)?,
            roots: read("OTEL_EXPORTER_OTLP_CERTIFICATE").map(PathBuf::from),
            share: share(&read)?,
            service: read("OTEL_SERVICE_NAME").unwrap_or_else(|| DEFAULT_SERVICE.to_owned()),
            attributes: pairs("OTEL_RESOURCE_ATTRIBUTES", &read)?,
        }))
    }
}

fn invalid(variable: &'static str, reason: String) -> TraceSettingError {
    TraceSettingError { variable, reason }
}

fn endpoint(read: &impl Fn(&'static str) -> Option<String>) -> Result<Url, TraceSettingError> {
    const OF_TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    const OF_ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let (name, text) = match read(OF_TRACES) {
        Some(text) => (OF_TRACES, text),
        None => {
            let base = read(OF_ALL).unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
            (OF_ALL, format!("{}/{TRACES_PATH}", base.trim_end_matches('/')))
        }
    };
    let url = Url::parse(&text).map_err(|error| invalid(name, format!("{text:?} is not a URL: {error}")))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        scheme => Err(invalid(name, format!("the scheme {scheme} is not one of http, https"))),
    }
}

/// The headers. Values may be credentials and are in no message.
fn headers(read: &impl Fn(&'static str) -> Option<String>) -> Result<HeaderMap, TraceSettingError> {
    const NAME: &str = "OTEL_EXPORTER_OTLP_HEADERS";
    let mut headers = HeaderMap::new();
    for (name, value) in pairs(NAME, read)? {
        let header = HeaderName::try_from(&name).map_err(|_| invalid(NAME, format!("{name:?} is no header name")))?;
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| invalid(NAME, format!("the value of {name:?} cannot be sent in a header")))?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

fn timeout(read: &impl Fn(&'static str) -> Option<String>) -> Result<Duration, TraceSettingError> {
    const NAME: &str = "OTEL_EXPORTER_OTLP_TIMEOUT";
    let Some(text) = read(NAME) else { return Ok(DEFAULT_TIMEOUT) };
    let millis = text.parse().ok().filter(|millis| *millis > 0);
    let millis = millis.ok_or_else(|| invalid(NAME, format!("{text:?} is not a positive number of milliseconds")))?;
    Ok(Duration::from_millis(millis))
}

/// The share of the sampler. A change has no parent, so that samplers with and without parents are the same.
fn share(read: &impl Fn(&'static str) -> Option<String>) -> Result<f64, TraceSettingError> {
    const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
    const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
    let sampler = read(SAMPLER).unwrap_or_else(|| "parentbased_always_on".to_owned());
    match sampler.strip_prefix("parentbased_").unwrap_or(&sampler) {
        "always_on" => Ok(1.0),
        "always_off" => Ok(0.0),
        "traceidratio" => {
            let Some(text) = read(ARGUMENT) else { return Ok(1.0) };
            let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
            share.ok_or_else(|| invalid(ARGUMENT, format!("{text:?} is not a number from 0 to 1")))
        }
        _ => Err(invalid(
            SAMPLER,
            format!("{sampler:?} is not one of always_on, always_off, traceidratio, with or without parentbased_"),
        )),
    }
}

/// The pairs of `KEY=VALUE,…`, with percent-encoded values.
fn pairs(
    name: &'static str,
    read: &impl Fn(&'static str) -> Option<String>,
) -> Result<Vec<(String, String)>, TraceSettingError> {
    let text = read(name).unwrap_or_default();
    let pair = |(at, pair): (usize, &str)| {
        let (key, value) = pair.split_once('=').filter(|(key, _)| !key.trim().is_empty()).ok_or_else(|| {
            // The text may be a credential.
            invalid(name, format!("part {} is not KEY=VALUE", at + 1))
        })?;
        let value = percent_encoding::percent_decode_str(value.trim()).decode_utf8();
        let value = value.map_err(|_| invalid(name, format!("the value of {:?} is not UTF-8", key.trim())))?;
        Ok((key.trim().to_owned(), value.into_owned()))
    };
    text.split(',').filter(|part| !part.trim().is_empty()).enumerate().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Option<TraceSettings>, String> {
        let find = |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned());
        TraceSettings::from_variables(find).map_err(|error| error.to_string())
    }

    const ON: (&str, &str) = ("OTEL_TRACES_EXPORTER", "otlp");

    #[test]
    fn traces_are_off_by_default() {
        assert_eq!(settings(&[]), Ok(None));
        assert_eq!(settings(&[("OTEL_TRACES_EXPORTER", "none"), ("OTEL_TRACES_SAMPLER", "x")]), Ok(None));
        let error = settings(&[("OTEL_TRACES_EXPORTER", "jaeger")]).expect_err("unknown");
        assert_eq!(error, "OTEL_TRACES_EXPORTER: \"jaeger\" is not one of none, otlp");
    }

    #[test]
    fn endpoints_are_of_all_signals_or_of_traces() {
        let endpoint = |variables: &[(&str, &str)]| {
            let variables: Vec<_> = variables.iter().copied().chain([ON]).collect();
            settings(&variables).map(|settings| settings.expect("on").endpoint.to_string())
        };
        assert_eq!(endpoint(&[]).as_deref(), Ok("http://localhost:4318/v1/traces"));
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector.monitoring:4318/x/");
        assert_eq!(endpoint(&[base]).as_deref(), Ok("https://collector.monitoring:4318/x/v1/traces"));
        let whole = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://tempo:80/otlp");
        assert_eq!(endpoint(&[base, whole]).as_deref(), Ok("http://tempo/otlp"));
        let error = endpoint(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")]).expect_err("no scheme");
        assert!(error.contains("scheme collector is not one of http, https"), "{error}");
        let error = settings(&[ON, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).expect_err("gRPC");
        assert!(error.contains("\"grpc\" is not supported, only http/protobuf"), "{error}");
    }

    #[test]
    fn samplers_headers_and_attributes_are_read() {
        let read = |variables: &[(&str, &str)]| {
            let variables: Vec<_> = variables.iter().copied().chain([ON]).collect();
            settings(&variables).map(|settings| settings.expect("on"))
        };
        let share = |sampler, argument| {
            read(&[("OTEL_TRACES_SAMPLER", sampler), ("OTEL_TRACES_SAMPLER_ARG", argument)]).map(|it| it.share)
        };
        assert_eq!(share("", ""), Ok(1.0));
        assert_eq!(share("always_off", ""), Ok(0.0));
        assert_eq!(share("parentbased_traceidratio", "0.25"), Ok(0.25));
        assert!(share("traceidratio", "1.5").is_err() && share("jaeger_remote", "").is_err());
        let settings = read(&[
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc, x-tenant=a"),
            ("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=east"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_SERVICE_NAME", "mesh"),
        ])
        .expect("valid");
        assert_eq!(settings.headers["authorization"], "Bearer abc");
        assert_eq!(settings.headers["x-tenant"], "a");
        assert!(!format!("{settings:?}").contains("abc"), "credentials are not readable");
        assert_eq!(settings.attributes, [("k8s.cluster.name".to_owned(), "east".to_owned())]);
        assert_eq!((settings.timeout, settings.service.as_str()), (Duration::from_millis(2_500), "mesh"));
        let error = read(&[("OTEL_EXPORTER_OTLP_HEADERS", "secret-token")]).expect_err("no pair");
        assert_eq!(error, "OTEL_EXPORTER_OTLP_HEADERS: part 1 is not KEY=VALUE");
    }
}
