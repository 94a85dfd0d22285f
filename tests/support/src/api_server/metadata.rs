//! Which form of objects a request accepts: whole objects, or their metadata.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

/// The form of the objects in a response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Form {
    Whole,
    /// `PartialObjectMetadata`, for single objects and the events of watches.
    Metadata,
    /// `PartialObjectMetadataList`, for lists.
    MetadataList,
}

/// The form that a request accepts, as a real server reads the header; `None` if the server has no such form.
pub(super) fn accepted(headers: &HeaderMap) -> Option<Form> {
    let Some(accept) = headers.get(ACCEPT) else { return Some(Form::Whole) };
    accept.to_str().ok()?.split(',').find_map(form)
}

/// The form that one media type of the header means.
fn form(media_type: &str) -> Option<Form> {
    let mut parts = media_type.split(';').map(str::trim);
    if !matches!(parts.next()?, "application/json" | "*/*") {
        return None;
    }
    let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
    let of = |name: &str| parameters.iter().find(|(of, _)| *of == name).map(|(_, value)| *value);
    let is_meta = of("g") == Some("meta.k8s.io") && matches!(of("v"), Some("v1" | "v1beta1"));
    match of("as") {
        None => Some(Form::Whole),
        Some("PartialObjectMetadata") if is_meta => Some(Form::Metadata),
        Some("PartialObjectMetadataList") if is_meta => Some(Form::MetadataList),
        Some(_) => None,
    }
}
