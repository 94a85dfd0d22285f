//! Rules for traffic: where requests go, which services a proxy sees, and what routers and node proxies serve.

pub(crate) mod ambient;
pub(crate) mod credentials;
pub(crate) mod destination_rules;
pub(crate) mod destinations;
pub(crate) mod gateway_api;
pub(crate) mod gateways;
pub(crate) mod ingresses;
pub(crate) mod policy_statuses;
pub(crate) mod pull_secrets;
pub(crate) mod reconciled;
pub(crate) mod secret_accounts;
pub(crate) mod secrets;
pub(crate) mod sidecars;
pub(crate) mod unenforced_policies;
pub(crate) mod virtual_services;
pub(crate) mod waypoint_reach;
pub(crate) mod waypoints;
