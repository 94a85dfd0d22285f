//! RequestAuthentications: accepted JWTs (P15).

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Attachment, ProviderService, StoredStatus, Text, Timestamp};

/// A RequestAuthentication.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct RequestAuthentication {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older comes first.
    pub created: Timestamp,
    /// Its target.
    pub attachment: Attachment,
    /// Rules, one per issuer.
    pub rules: Vec<JwtRule>,
    /// Its status, read if it has targets or conditions. Derived collections of policies do not have it, so that
    /// writing it changes nothing else.
    pub status: StoredStatus,
}

/// An issuer of tokens, their location in requests, and the headers made from them.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct JwtRule {
    /// The issuer.
    pub issuer: Text,
    /// Accepted audiences; empty is any.
    pub audiences: Vec<Text>,
    /// The keys.
    pub keys: JwtKeys,
    /// Headers with tokens: name and prefix of the token.
    pub from_headers: Vec<(Text, Text)>,
    /// Query parameters with tokens.
    pub from_params: Vec<Text>,
    /// Cookies with tokens.
    pub from_cookies: Vec<Text>,
    /// Header for the payload, empty for none.
    pub output_payload_to_header: Text,
    /// Claims that are copied to headers: header and claim.
    pub output_claim_to_headers: Vec<(Text, Text)>,
    /// Whether the token is forwarded.
    pub forward_original_token: bool,
    /// Timeout of fetching the keys.
    pub timeout: Option<Duration>,
    /// Additional claims that are lists separated by spaces.
    pub space_delimited_claims: Vec<Text>,
    /// Where tokens are in requests, or where they are copied to, cannot be read: a request is accepted only with a valid
    /// token of another rule.
    pub location_unreadable: bool,
}

/// Source of the keys of an issuer.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum JwtKeys {
    /// Inline: the text of a JSON Web Key Set.
    Inline(Text),
    /// At a URL.
    Uri {
        /// The URL, with scheme http or https.
        uri: Text,
        /// Its server.
        server: ProviderService,
    },
    /// At the URL in the OpenID configuration of the issuer.
    #[default]
    OpenId,
    /// Invalid keys, or another part that decides which tokens are valid cannot be read: no token is accepted.
    Unusable,
}

impl JwtRule {
    /// The key of the key set to fetch, unless the keys are inline.
    #[must_use]
    pub fn remote_keys(&self) -> Option<JwksKey> {
        match &self.keys {
            // A set at a known URL is shared by all rules with that URL.
            JwtKeys::Uri { uri, .. } => Some(JwksKey { uri: uri.clone(), issuer: Text::default() }),
            JwtKeys::OpenId => Some(JwksKey { uri: Text::default(), issuer: self.issuer.clone() }),
            JwtKeys::Inline(_) | JwtKeys::Unusable => None,
        }
    }
}

/// Key of a fetched key set.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct JwksKey {
    /// Its URL; empty if it is discovered from the issuer.
    pub uri: Text,
    /// The issuer for discovery, empty if the URL is known.
    pub issuer: Text,
}

impl fmt::Display for JwksKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.uri.is_empty() { &self.issuer } else { &self.uri })
    }
}

/// A key set that the control plane fetches.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct WantedJwks {
    /// Timeout of a fetch.
    pub timeout: Duration,
    /// Namespaces of the RequestAuthentications that refer to it.
    pub namespaces: BTreeSet<Text>,
}

/// The result of fetching a key set.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Jwks {
    /// The text of the set, as received; empty if there is none.
    pub text: Text,
    /// Why a later text was not accepted; empty if it was.
    pub refused: Text,
}
