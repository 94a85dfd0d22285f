//! RequestAuthentications: which tokens count (P15).

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::{Attachment, ProviderService, Text, Timestamp};

/// A RequestAuthentication.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct RequestAuthentication {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older comes first.
    pub created: Timestamp,
    /// What it is for.
    pub attachment: Attachment,
    /// Issuers of tokens.
    pub rules: Vec<JwtRule>,
}

/// An issuer of tokens, where they stand in requests and what is made of them.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct JwtRule {
    /// Who issues them.
    pub issuer: Text,
    /// One of these is meant; empty is anyone.
    pub audiences: Vec<Text>,
    /// Where the keys are.
    pub keys: JwtKeys,
    /// Headers with tokens: name and what stands before the token.
    pub from_headers: Vec<(Text, Text)>,
    /// Query parameters with tokens.
    pub from_params: Vec<Text>,
    /// Cookies with tokens.
    pub from_cookies: Vec<Text>,
    /// Header the payload is handed on in, empty for none.
    pub output_payload_to_header: Text,
    /// Claims that are handed on in headers: header and claim.
    pub output_claim_to_headers: Vec<(Text, Text)>,
    /// The token itself is handed on.
    pub forward_original_token: bool,
    /// Longest time to fetch the keys.
    pub timeout: Option<Duration>,
    /// Claims that are lists separated by spaces, beside the usual ones.
    pub space_delimited_claims: Vec<Text>,
}

/// Where the keys of an issuer are.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum JwtKeys {
    /// Here: the text of a JSON Web Key Set.
    Inline(Text),
    /// At that address.
    Uri {
        /// The address, of http or https.
        uri: Text,
        /// Its server.
        server: ProviderService,
    },
    /// Where the issuer's OpenID configuration says.
    #[default]
    OpenId,
    /// Declared, but no keys: no token counts.
    Unusable,
}

impl JwtRule {
    /// What has to be fetched for it, if its keys are not here.
    #[must_use]
    pub fn remote_keys(&self) -> Option<JwksKey> {
        match &self.keys {
            // The keys at a known address are those of everyone who names it.
            JwtKeys::Uri { uri, .. } => Some(JwksKey { uri: uri.clone(), issuer: Text::default() }),
            JwtKeys::OpenId => Some(JwksKey { uri: Text::default(), issuer: self.issuer.clone() }),
            JwtKeys::Inline(_) | JwtKeys::Unusable => None,
        }
    }
}

/// A set of keys that is fetched.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct JwksKey {
    /// Its address; empty if the issuer has to be asked for it.
    pub uri: Text,
    /// The issuer that is asked for the address, empty if it is known.
    pub issuer: Text,
}

impl fmt::Display for JwksKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.uri.is_empty() { &self.issuer } else { &self.uri })
    }
}

/// What came of fetching a set of keys.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Jwks {
    /// The text of the set, as served.
    pub text: Text,
}
