//! URLs of JSON Web Key Sets.

use sluice_model::ProviderService;

/// The server of a JWKS URL.
///
/// # Errors
/// The text is not an `http://` or `https://` URL.
pub(super) fn parse_jwks_uri(uri: &str) -> Result<ProviderService, String> {
    let (scheme, rest) = uri.split_once("://").unwrap_or((uri, ""));
    let default = match scheme.to_ascii_lowercase().as_str() {
        "http" => 80,
        "https" => 443,
        _ => return Err(format!("`{uri}` is not an http or https URL")),
    };
    if uri.chars().any(|c| c.is_control() || c == ' ') {
        return Err(format!("`{uri}` contains characters that a URL must not contain"));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let server = authority.rsplit_once('@').map_or(authority, |(_, server)| server);
    let (host, port) = match server.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(|| format!("`{server}` lacks a closing bracket"))?,
        None => server.split_at(server.find(':').unwrap_or(server.len())),
    };
    let port = match port.strip_prefix(':') {
        None | Some("") => default,
        Some(port) => port.parse::<u16>().map_err(|_| format!("`{port}` is not a port number"))?,
    };
    Ok(ProviderService { service: host.into(), port: u32::from(port) })
}
