//! `/debug/krtz` (O10): all collections with their records and what made them, in the form of istiod.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use sluice_engine::DebugDump;

use crate::AdminState;
use crate::answer::{self, PageResult, Parameters};

/// The page: all collections, or the one that `collection` names.
pub(crate) async fn serve(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> PageResult {
    let all = DebugDump::of(state.engine.clone());
    let dump = match parameters.get("collection").filter(|name| !name.is_empty()) {
        None => all,
        Some(name) if state.engine.graph().iter().any(|info| info.name == *name) => all.only(name),
        Some(name) => {
            let reason = format!("there is no collection {name:?}: /debug/collections lists them");
            return Err(answer::fail(StatusCode::NOT_FOUND, &reason));
        }
    };
    Ok(answer::stream_json(dump, &parameters))
}
