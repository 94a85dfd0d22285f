//! Names of connected proxies that a mistyped one may mean.

use crate::answer_output::{subscribers, text};
use crate::connect::{QueryError, Server};
use crate::similar_name::similar;

/// The error for a proxy that is not connected, with a similar name of a connected one. Other errors stay.
pub(crate) fn with_similar_proxy(error: QueryError, server: &Server, proxy: &str) -> QueryError {
    let QueryError::NotFound(reason) = error else { return error };
    let answers = server.get_all("syncz", &[]).map(|asked| asked.answers).unwrap_or_default();
    let names = answers.iter().flat_map(|(_, answer)| subscribers(answer)).map(|it| text(it, "proxy"));
    let hint = similar(proxy, names).map(|name| format!(" Did you mean {name:?}?")).unwrap_or_default();
    QueryError::NotFound(format!("{proxy}: {reason}{hint}"))
}
