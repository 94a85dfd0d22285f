//! Sources of configuration that the mesh config lists (C08, C10).

use serde::{Deserialize, Serialize};

use crate::{ClientTls, Text};

/// A source of the objects of Istio's API groups.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ConfigSource {
    /// Its URL, as it is written.
    pub address: Text,
    /// What the URL refers to.
    pub kind: ConfigSourceKind,
    /// TLS of a connection to an xDS server; `None` is plaintext.
    pub tls: Option<ClientTls>,
}

/// What a source of configuration is.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ConfigSourceKind {
    /// `xds://HOST:PORT`: a server of configuration over xDS.
    Xds(Text),
    /// `fs:///PATH`: a directory of files.
    Directory(Text),
    /// `k8s://`: the local cluster.
    Cluster,
    /// Another URL. Nothing is read from it.
    Unsupported,
}
