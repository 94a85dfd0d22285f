//! External authorization filters of `CUSTOM` policies (P16).

use envoy_types::pb::envoy::config::core::v3::http_uri::HttpUpstreamType;
use envoy_types::pb::envoy::config::core::v3::{ApiVersion, GrpcService, HeaderValue, HttpUri};
use envoy_types::pb::envoy::extensions::filters::http::ext_authz::v3::{
    AuthorizationRequest, AuthorizationResponse, BufferSettings, ExtAuthz, HttpService, ext_authz::Services,
};
use envoy_types::pb::envoy::extensions::filters::network::ext_authz::v3::ExtAuthz as TcpExtAuthz;
use envoy_types::pb::envoy::r#type::matcher::v3::{ListStringMatcher, MetadataMatcher, StringMatcher};
use envoy_types::pb::envoy::r#type::v3::{HttpStatus, StatusCode};
use sluice_model::{ExtAuthz as Provider, ExtAuthzHttp, ProviderKind, Text};
use std::time::Duration;

use super::Inexpressible;
use super::filter_names::{CUSTOM, CUSTOM_PREFIX, RBAC_HTTP, RBAC_TCP};
use super::matchers::{metadata, text, value};
use crate::listener_settings::{Collector, ListenerSettings, authorizer_service};
use crate::string_match::prefix;
use crate::wire::duration;

pub(super) const EXT_AUTHZ_HTTP: &str = "envoy.filters.http.ext_authz";
pub(super) const EXT_AUTHZ_TCP: &str = "envoy.filters.network.ext_authz";

/// Default timeout. It is long because an authorization may need user interaction.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// The filters of a provider.
pub(super) struct ProviderFilters {
    pub(super) http: ExtAuthz,
    /// Network filter. Only gRPC providers support connections.
    pub(super) tcp: Option<TcpExtAuthz>,
}

/// The filters of the provider with this name; an error if it does not exist or its service does not.
pub(super) fn ext_authz(settings: &ListenerSettings, name: &str) -> Result<ProviderFilters, Inexpressible> {
    let named = settings.mesh.extension_providers.iter().filter(|provider| provider.name == *name);
    let mut kinds = named.map(|provider| &provider.kind).filter(|kind| authorizer_service(kind).is_some());
    let kind = kinds.next().ok_or_else(|| format!("there is no provider `{name}`"))?;
    if kinds.next().is_some() {
        return Err(format!("there are several providers `{name}`").into());
    }
    check_name(name)?;
    let (shared, http) = match kind {
        ProviderKind::ExtAuthzHttp(provider) => (&provider.0, Some(&provider.1)),
        ProviderKind::ExtAuthzGrpc(provider) => (&**provider, None),
        _ => return Err("the provider does not support external authorization".into()),
    };
    if !(1..=65535).contains(&shared.service.port) {
        return Err(format!("port `{}` is invalid: expected 1 to 65535", shared.service.port).into());
    }
    let service = settings.collectors.get(&shared.service);
    let service = service.ok_or_else(|| format!("service `{}` does not exist", shared.service.service))?;
    let mut filter = ExtAuthz {
        status_on_error: status(&shared.status_on_error)?,
        failure_mode_allow: shared.fail_open,
        transport_api_version: ApiVersion::V3 as i32,
        filter_enabled_metadata: Some(matched(RBAC_HTTP, name)),
        with_request_body: shared.include_request_body.as_ref().map(|body| BufferSettings {
            max_request_bytes: body.max_request_bytes,
            allow_partial_message: body.allow_partial_message,
            pack_as_bytes: body.pack_as_bytes,
        }),
        ..ExtAuthz::default()
    };
    let timeout = duration(shared.timeout.unwrap_or(DEFAULT_TIMEOUT));
    let Some(http) = http else {
        let grpc = GrpcService { timeout: Some(timeout), ..service.grpc_service() };
        filter.services = Some(Services::GrpcService(grpc.clone()));
        return Ok(ProviderFilters { http: filter, tcp: Some(over_tcp(shared, grpc, name)) });
    };
    check_http(http)?;
    filter.allowed_headers = headers(&http.include_request_headers).or_else(|| headers(&http.include_headers));
    filter.services = Some(Services::HttpService(http_service(http, service, timeout)));
    Ok(ProviderFilters { http: filter, tcp: None })
}

fn http_service(
    provider: &ExtAuthzHttp,
    service: &Collector,
    timeout: envoy_types::pb::google::protobuf::Duration,
) -> HttpService {
    let added: Vec<HeaderValue> = provider
        .include_additional_headers
        .iter()
        .map(|(key, value)| HeaderValue { key: key.to_string(), value: value.to_string(), ..HeaderValue::default() })
        .collect();
    let answers = [
        &provider.headers_to_upstream_on_allow,
        &provider.headers_to_downstream_on_deny,
        &provider.headers_to_downstream_on_allow,
    ];
    HttpService {
        server_uri: Some(HttpUri {
            // The field is required, but Envoy uses only the cluster.
            uri: format!("http://{}", service.host),
            timeout: Some(timeout),
            http_upstream_type: Some(HttpUpstreamType::Cluster(service.cluster.to_string())),
        }),
        path_prefix: provider.path_prefix.to_string(),
        authorization_request: (!added.is_empty())
            .then(|| AuthorizationRequest { headers_to_add: added, ..AuthorizationRequest::default() }),
        authorization_response: answers.iter().any(|headers| !headers.is_empty()).then(|| AuthorizationResponse {
            allowed_upstream_headers: headers(answers[0]),
            allowed_client_headers: headers(answers[1]),
            allowed_client_headers_on_success: headers(answers[2]),
            ..AuthorizationResponse::default()
        }),
        ..HttpService::default()
    }
}

fn over_tcp(provider: &Provider, grpc: GrpcService, name: &str) -> TcpExtAuthz {
    TcpExtAuthz {
        stat_prefix: "tcp.".to_owned(),
        failure_mode_allow: provider.fail_open,
        transport_api_version: ApiVersion::V3 as i32,
        grpc_service: Some(grpc),
        filter_enabled_metadata: Some(matched(RBAC_TCP, name)),
        ..TcpExtAuthz::default()
    }
}

/// Metadata match: a policy of this provider has matched.
fn matched(filter: &str, provider: &str) -> MetadataMatcher {
    let key = format!("{CUSTOM_PREFIX}shadow_effective_policy_id");
    metadata(filter, [key.as_str()], value(prefix(&format!("{CUSTOM}-{provider}"))))
}

fn headers(patterns: &[Text]) -> Option<ListStringMatcher> {
    let patterns: Vec<StringMatcher> =
        patterns.iter().map(|pattern| StringMatcher { ignore_case: true, ..text(pattern) }).collect();
    (!patterns.is_empty()).then_some(ListStringMatcher { patterns })
}

fn status(text: &str) -> Result<Option<HttpStatus>, Inexpressible> {
    if text.is_empty() {
        return Ok(None);
    }
    let code = text.parse().ok().and_then(|code: i32| StatusCode::try_from(code).ok());
    code.map(|code| Some(HttpStatus { code: code as i32 }))
        .ok_or_else(|| format!("`{text}` is not an HTTP status").into())
}

/// The provider name in names of policies and metadata.
fn check_name(name: &str) -> Result<(), Inexpressible> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let good =
        (1..=63).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-');
    if good { Ok(()) } else { Err(format!("`{name}` is not a DNS label").into()) }
}

fn check_http(provider: &ExtAuthzHttp) -> Result<(), Inexpressible> {
    if !provider.path_prefix.is_empty() && !provider.path_prefix.starts_with('/') {
        return Err(format!("path prefix `{}` must begin with `/`", provider.path_prefix).into());
    }
    let lists = [
        &provider.include_request_headers,
        &provider.include_headers,
        &provider.headers_to_downstream_on_deny,
        &provider.headers_to_downstream_on_allow,
        &provider.headers_to_upstream_on_allow,
    ];
    if lists.into_iter().flatten().any(|header| header.as_str() == "*") {
        return Err("a header wildcard must have a prefix or suffix".into());
    }
    Ok(())
}
