//! ADS sessions: scripted without a network, random ones against what the store says, then over real sockets.

#[path = "session/addresses.rs"]
mod addresses;
#[path = "session/client.rs"]
mod client;
#[path = "session/debug.rs"]
mod debug;
#[path = "session/fixture.rs"]
mod fixture;
#[path = "session/identity.rs"]
mod identity;
#[path = "session/random.rs"]
mod random;
#[path = "session/rules.rs"]
mod rules;
#[path = "session/socket.rs"]
mod socket;
#[path = "session/virtual_hosts.rs"]
mod virtual_hosts;
