//! What forms send.

use axum::http::HeaderMap;

use crate::access::{Refused, Sender};
use crate::answer::Parameters;

/// The fields of a form.
pub(super) fn form_fields(body: &[u8]) -> Parameters {
    form_urlencoded::parse(body).into_owned().collect()
}

/// Fails unless a page of this server has sent the form.
pub(super) fn is_from_own_page(headers: &HeaderMap) -> Result<(), Refused> {
    if Sender::of(headers) == Sender::Own { Ok(()) } else { Err(Refused::other_origin()) }
}
