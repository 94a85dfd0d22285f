//! ADS sessions: scripted without a network, random ones against what the store says, then over real sockets.

mod addresses;
mod client;
mod debug;
mod fixture;
mod identity;
mod random;
mod rules;
mod socket;
mod virtual_hosts;
