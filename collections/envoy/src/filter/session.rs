//! Persistent sessions: the HTTP filter and its configuration per route.

use std::collections::HashMap;

use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::extensions::filters::http::stateful_session::v3::{
    StatefulSession, StatefulSessionPerRoute, stateful_session_per_route::Override,
};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use envoy_types::pb::envoy::extensions::http::stateful_session::{
    cookie::v3::CookieBasedSessionState, header::v3::HeaderBasedSessionState,
};
use envoy_types::pb::envoy::r#type::http::v3::Cookie;
use envoy_types::pb::google::protobuf::Any;
use sluice_model::PersistentSession;

use crate::filter_config::http_filter;
use crate::wire::any;

const NAME: &str = "envoy.filters.http.stateful_session";

/// The filter, which has no effect without a per-route configuration.
pub(super) fn session_filter() -> HttpFilter {
    http_filter(NAME, any(&StatefulSession::default()))
}

/// Adds the persistent session of a service to the per-filter configuration of a route or virtual host.
pub(crate) fn add_session(settings: &mut HashMap<String, Any>, session: Option<&PersistentSession>) {
    let Some(session) = session else { return };
    let own = StatefulSessionPerRoute { r#override: Some(Override::StatefulSession(stateful_session(session))) };
    settings.insert(NAME.to_owned(), any(&own));
}

/// The filter with the persistent session of a service, for clients that have no configuration of it per route.
pub(crate) fn session_filter_of(session: &PersistentSession) -> HttpFilter {
    http_filter(NAME, any(&stateful_session(session)))
}

fn stateful_session(session: &PersistentSession) -> StatefulSession {
    let (name, typed_config) = match session {
        PersistentSession::Cookie { name, path } => {
            let cookie = Cookie { name: name.to_string(), path: path.to_string(), ..Cookie::default() };
            ("envoy.http.stateful_session.cookie", any(&CookieBasedSessionState { cookie: Some(cookie) }))
        }
        PersistentSession::Header(name) => {
            let state = HeaderBasedSessionState { name: name.to_string() };
            ("envoy.http.stateful_session.header", any(&state))
        }
    };
    let state = TypedExtensionConfig { name: name.to_owned(), typed_config: Some(typed_config) };
    StatefulSession { session_state: Some(state), ..StatefulSession::default() }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn route_configures_the_session_filter() {
        let kept = |session: PersistentSession| {
            let mut settings = HashMap::new();
            add_session(&mut settings, Some(&session));
            let own = StatefulSessionPerRoute::decode(settings[NAME].value.as_slice()).expect("settings of a route");
            let Some(Override::StatefulSession(session)) = own.r#override else { panic!("a session") };
            session.session_state.expect("a state")
        };
        let state = kept(PersistentSession::Cookie { name: "c".into(), path: "/p".into() });
        assert_eq!(state.name, "envoy.http.stateful_session.cookie");
        let cookie = CookieBasedSessionState::decode(state.typed_config.expect("a cookie").value.as_slice()).unwrap();
        let cookie = cookie.cookie.expect("a cookie");
        assert_eq!((cookie.name.as_str(), cookie.path.as_str(), cookie.ttl), ("c", "/p", None));
        let state = kept(PersistentSession::Header("x-s".into()));
        let header = HeaderBasedSessionState::decode(state.typed_config.expect("a header").value.as_slice()).unwrap();
        assert_eq!((state.name.as_str(), header.name.as_str()), ("envoy.http.stateful_session.header", "x-s"));
        let mut settings = HashMap::new();
        add_session(&mut settings, None);
        assert!(settings.is_empty());
    }
}
