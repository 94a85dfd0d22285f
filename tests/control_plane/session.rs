//! ADS sessions: scripted ones without a network, random ones that are compared with the store, and streams over real
//! sockets.

mod addresses;
mod client;
mod debug;
mod fixture;
mod identity;
mod locality_endpoints;
mod login;
mod on_demand_clusters;
mod random;
mod rules;
mod socket;
mod virtual_hosts;
mod waiting;
