//! Over real sockets.
