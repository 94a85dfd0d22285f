//! ADS sessions: scripted without a network, random ones compared with the store, then over real sockets.

mod addresses;
mod client;
mod debug;
mod fixture;
mod identity;
mod random;
mod rules;
mod socket;
mod virtual_hosts;
