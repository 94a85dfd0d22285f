//! Persistent sessions: later requests of a client go to the endpoint of its first request.

use serde::{Deserialize, Serialize};

use crate::{Labels, Text};

/// How a proxy finds the endpoint of a session.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum PersistentSession {
    /// By a cookie.
    Cookie {
        /// Its name.
        name: Text,
        /// `Path` attribute of the cookie.
        path: Text,
    },
    /// By the header of that name.
    Header(Text),
}

/// Names of the labels that enable persistent sessions for a Service.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct SessionLabels {
    /// Label with the value `COOKIE[:PATH]`; an empty name disables it (`PILOT_PERSISTENT_SESSION_LABEL`).
    pub cookie: Text,
    /// Label with the name of a header as value; an empty name disables it (`PILOT_PERSISTENT_SESSION_HEADER_LABEL`).
    pub header: Text,
    /// Proxies keep sessions (`PILOT_ENABLE_PERSISTENT_SESSION_FILTER`). Draining endpoints are sent in either case.
    pub enabled: bool,
    /// Label of workloads that are draining, with any value: they receive requests of sessions only. An empty name disables it
    /// (`PILOT_DRAINING_LABEL`).
    pub draining: Text,
}

impl Default for SessionLabels {
    fn default() -> Self {
        Self {
            cookie: "istio.io/persistent-session".into(),
            header: "istio.io/persistent-session-header".into(),
            enabled: false,
            draining: "istio.io/draining".into(),
        }
    }
}

impl SessionLabels {
    /// Whether the labels of a workload say that it is draining.
    #[must_use]
    pub fn is_draining(&self, labels: &Labels) -> bool {
        value(&self.draining, labels).is_some()
    }

    /// Whether the labels of a Service enable sessions by cookie.
    #[must_use]
    pub fn by_cookie(&self, labels: &Labels) -> bool {
        value(&self.cookie, labels).is_some()
    }

    /// Whether the labels of a Service enable sessions.
    #[must_use]
    pub fn enabled_for(&self, labels: &Labels) -> bool {
        self.by_cookie(labels) || value(&self.header, labels).is_some()
    }

    /// How proxies keep sessions with a Service; a cookie takes precedence over a header.
    #[must_use]
    pub fn session(&self, labels: &Labels) -> Option<PersistentSession> {
        if !self.enabled {
            return None;
        }
        if let Some(cookie) = value(&self.cookie, labels) {
            let (name, path) = cookie.split_once(':').unwrap_or((cookie, "/"));
            return Some(PersistentSession::Cookie { name: name.into(), path: path.into() });
        }
        value(&self.header, labels).map(|header| PersistentSession::Header(header.clone()))
    }
}

fn value<'a>(label: &Text, labels: &'a Labels) -> Option<&'a Text> {
    labels.get(label).filter(|value| !label.is_empty() && !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_select_the_kind_of_session() {
        let known = SessionLabels { enabled: true, ..SessionLabels::default() };
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        let cookie = |name: &str, path: &str| PersistentSession::Cookie { name: name.into(), path: path.into() };
        let (by_cookie, by_header) = ("istio.io/persistent-session", "istio.io/persistent-session-header");
        let check = |pairs: &[(&str, &str)], expect: Option<PersistentSession>| {
            assert_eq!(known.session(&labels(pairs)), expect, "{pairs:?}");
            assert_eq!(known.enabled_for(&labels(pairs)), expect.is_some(), "{pairs:?}");
        };
        check(&[(by_cookie, "c")], Some(cookie("c", "/")));
        check(&[(by_cookie, "c:/a:b")], Some(cookie("c", "/a:b")));
        check(&[(by_header, "x-session"), (by_cookie, "c")], Some(cookie("c", "/")));
        check(&[(by_header, "x-session")], Some(PersistentSession::Header("x-session".into())));
        check(&[(by_header, ""), ("app", "c")], None);
        let off = SessionLabels { cookie: "".into(), ..known.clone() };
        assert_eq!(off.session(&labels(&[("", "c")])), None, "an empty label name disables the label");
        assert_eq!(SessionLabels::default().session(&labels(&[(by_cookie, "c")])), None);
    }
}
