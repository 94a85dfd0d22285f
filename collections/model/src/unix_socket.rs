//! Addresses that are Unix domain sockets.

/// Prefix of an address that is the path of a Unix domain socket.
pub const UNIX_PREFIX: &str = "unix://";
