//! URLs of JSON Web Key Sets.

use sluice_model::ProviderService;

/// Why a text is not the URL of a key set; displayed as a lower-case fragment.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum JwksUriError {
    #[error("`{0}` is not an http or https URL")]
    Scheme(String),
    #[error("`{0}` contains characters that a URL must not contain")]
    Characters(String),
    #[error("`{0}` lacks a closing bracket")]
    Bracket(String),
    #[error("`{0}` has text after the closing bracket that is not a port")]
    AfterBracket(String),
    #[error("`{0}` is not a port number")]
    Port(String),
}

/// The server of a JWKS URL.
///
/// # Errors
/// The text is not an `http://` or `https://` URL.
pub(super) fn parse_jwks_uri(uri: &str) -> Result<ProviderService, JwksUriError> {
    let (scheme, rest) = uri.split_once("://").unwrap_or((uri, ""));
    let default = match scheme.to_ascii_lowercase().as_str() {
        "http" => 80,
        "https" => 443,
        _ => return Err(JwksUriError::Scheme(uri.to_owned())),
    };
    if uri.chars().any(|c| c.is_control() || c == ' ') {
        return Err(JwksUriError::Characters(uri.to_owned()));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let server = authority.rsplit_once('@').map_or(authority, |(_, server)| server);
    let (host, port) = match server.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(|| JwksUriError::Bracket(server.to_owned()))?,
        None => server.split_at(server.find(':').unwrap_or(server.len())),
    };
    if !port.is_empty() && !port.starts_with(':') {
        return Err(JwksUriError::AfterBracket(server.to_owned()));
    }
    let port = match port.strip_prefix(':') {
        None | Some("") => default,
        Some(port) => port.parse::<u16>().map_err(|_| JwksUriError::Port(port.to_owned()))?,
    };
    Ok(ProviderService { service: host.into(), port: u32::from(port) })
}
