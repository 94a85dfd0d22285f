//! Redirects.

use envoy_types::pb::envoy::config::route::v3::RedirectAction;
use envoy_types::pb::envoy::config::route::v3::redirect_action::{
    PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier,
};
use sluice_model::{HttpRedirect, RedirectPort};

/// A redirect of requests that arrive at `port`; `None` if Envoy does not support its status.
pub(super) fn build_redirect(redirect: &HttpRedirect, port: u32, is_tls: bool) -> Option<RedirectAction> {
    let code = match redirect.code {
        0 | 301 => RedirectResponseCode::MovedPermanently,
        302 => RedirectResponseCode::Found,
        303 => RedirectResponseCode::SeeOther,
        307 => RedirectResponseCode::TemporaryRedirect,
        308 => RedirectResponseCode::PermanentRedirect,
        _ => return None,
    };
    let path = if redirect.prefix_rewrite.is_empty() {
        PathRewriteSpecifier::PathRedirect(redirect.uri.to_string())
    } else {
        PathRewriteSpecifier::PrefixRewrite(redirect.prefix_rewrite.to_string())
    };
    let scheme = match redirect.scheme.as_str() {
        "" if is_tls => "https",
        "" => "http",
        scheme => scheme,
    };
    let port = match redirect.port {
        RedirectPort::FromProtocol => 0,
        RedirectPort::FromRequest => port,
        RedirectPort::Port(port) => port,
    };
    // The default port of a scheme is omitted.
    let usual = (port == 80 && scheme == "http") || (port == 443 && scheme == "https");
    Some(RedirectAction {
        host_redirect: redirect.authority.to_string(),
        path_rewrite_specifier: Some(path),
        scheme_rewrite_specifier: (!redirect.scheme.is_empty())
            .then(|| SchemeRewriteSpecifier::SchemeRedirect(redirect.scheme.to_string())),
        port_redirect: if usual { 0 } else { port },
        response_code: code.into(),
        ..RedirectAction::default()
    })
}
