//! The connections of a port, counted in total and by address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, warn};

use crate::{ListenLimits, PeriodicLog, PortOptions};

/// Number of bits of an IPv6 address that identify a network: one client usually has a whole network.
const V6_NETWORK_BITS: u32 = 64;

/// The address for which a client is counted: its own, or its network with IPv6.
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> V6_NETWORK_BITS << V6_NETWORK_BITS).into(),
        v4 => v4,
    }
}

/// Why a limit closes a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionEnd {
    /// The port has its maximum number of connections.
    Total,
    /// The address has its maximum number of connections.
    Address,
    /// Too many other connections are pending.
    Wait,
    /// The TLS handshake takes too long.
    Handshake,
    /// No request arrives in time.
    FirstRequest,
    /// There has been no request in progress for too long.
    Idle,
    /// The connection has reached its maximum age.
    Age,
    /// The credentials of the client have expired or have been withdrawn.
    Credentials,
}

impl ConnectionEnd {
    const ALL: [Self; 8] = [
        Self::Total,
        Self::Address,
        Self::Wait,
        Self::Handshake,
        Self::FirstRequest,
        Self::Idle,
        Self::Age,
        Self::Credentials,
    ];

    /// Its value of the metric's label `reason`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Address => "address",
            Self::Wait => "wait",
            Self::Handshake => "handshake",
            Self::FirstRequest => "first_request",
            Self::Idle => "idle",
            Self::Age => "age",
            Self::Credentials => "credentials",
        }
    }

    /// Whether it is part of normal operation.
    fn is_normal(self) -> bool {
        matches!(self, Self::Idle | Self::Age)
    }

    /// What happened, for the log.
    fn message(self) -> &'static str {
        match self {
            Self::Total => "connection closed: the port has its maximum number of connections",
            Self::Address => "connection closed: its address has the maximum number of connections",
            Self::Wait => "connection closed: too many connections wait for their first request",
            Self::Handshake => "connection closed: the TLS handshake timed out",
            Self::FirstRequest => "connection closed: no request arrived in time",
            Self::Idle => "connection closed: it was idle",
            Self::Age => "connection closed: it reached its maximum age",
            Self::Credentials => "connection closed: the credentials of the client are no longer valid",
        }
    }
}

/// The connections of a port.
pub(crate) struct Slots {
    pub(crate) port: PortOptions,
    table: Mutex<Table>,
    pending: Arc<Semaphore>,
    connections_metric: Gauge,
    pending_metric: Gauge,
    logs: [PeriodicLog; ConnectionEnd::ALL.len()],
}

#[derive(Default)]
struct Table {
    connections: usize,
    addresses: HashMap<IpAddr, AddressSlots>,
}

#[derive(Default)]
struct AddressSlots {
    connections: usize,
    /// Permits for pending connections, while there are any.
    pending: Option<Arc<Semaphore>>,
}

impl Slots {
    pub(crate) fn new(port: PortOptions) -> Arc<Self> {
        Arc::new(Self {
            pending: Arc::new(Semaphore::new(port.limits.max_pending.min(Semaphore::MAX_PERMITS))),
            connections_metric: port.metrics.connections(port.name),
            pending_metric: port.metrics.pending(port.name),
            table: Mutex::default(),
            logs: Default::default(),
            port,
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of an address in the table; `None` if the address has no limits of its own.
    fn key(&self, address: IpAddr) -> Option<IpAddr> {
        let address = address.to_canonical();
        if self.port.unlimited_addresses.iter().any(|range| range.contains(&address)) {
            return None;
        }
        Some(network_of(address))
    }

    /// Adds a connection. `None` if a limit forbids it.
    pub(crate) fn add(self: &Arc<Self>, peer: SocketAddr) -> Option<ConnectionSlot> {
        let (limits, key) = (&self.port.limits, self.key(peer.ip()));
        let mut table = self.table();
        let refused = if table.connections >= limits.max_connections {
            Some(ConnectionEnd::Total)
        } else {
            let of_address = key.and_then(|key| table.addresses.get(&key)).map_or(0, |address| address.connections);
            (of_address >= limits.max_connections_per_address).then_some(ConnectionEnd::Address)
        };
        if let Some(end) = refused {
            drop(table);
            self.closed(peer, end);
            return None;
        }
        table.connections += 1;
        if let Some(key) = key {
            table.addresses.entry(key).or_default().connections += 1;
        }
        drop(table);
        self.connections_metric.inc();
        Some(ConnectionSlot { slots: self.clone(), peer, key, pending: Mutex::default() })
    }

    fn remove(&self, key: Option<IpAddr>) {
        let mut table = self.table();
        table.connections -= 1;
        if let Some(Entry::Occupied(mut entry)) = key.map(|key| table.addresses.entry(key)) {
            entry.get_mut().connections -= 1;
            if entry.get().connections == 0 {
                entry.remove();
            }
        }
        drop(table);
        self.connections_metric.dec();
    }

    /// Permits for pending connections of an address.
    fn pending_of(&self, key: IpAddr) -> Arc<Semaphore> {
        let max = self.port.limits.max_pending_per_address.min(Semaphore::MAX_PERMITS);
        let mut table = self.table();
        let address = table.addresses.entry(key).or_default();
        address.pending.get_or_insert_with(|| Arc::new(Semaphore::new(max))).clone()
    }

    /// Drops the permits of an address if it has no pending connection.
    fn tidy_pending(&self, key: IpAddr) {
        let mut table = self.table();
        if let Some(address) = table.addresses.get_mut(&key)
            && address.pending.as_ref().is_some_and(|permits| Arc::strong_count(permits) == 1)
        {
            address.pending = None;
        }
    }

    /// Counts and logs a connection that a limit closes.
    fn closed(&self, peer: SocketAddr, end: ConnectionEnd) {
        self.port.metrics.closed(self.port.name, end.label());
        let (port, event) = (self.port.name, end.message());
        debug!(target: "listen", port, %peer, "{event}");
        if !end.is_normal()
            && let Some(connections) = self.logs[end as usize].event(Instant::now())
        {
            warn!(target: "listen", port, %peer, connections, "{event} (logged once a minute)");
        }
    }
}

/// The slot of an open connection. Dropping it frees the slot.
pub struct ConnectionSlot {
    slots: Arc<Slots>,
    peer: SocketAddr,
    key: Option<IpAddr>,
    pending: Mutex<Option<PendingPermit>>,
}

/// Permission of a pending connection to be served. For most connections, the fields are dropped by the first request.
struct PendingPermit {
    address: Option<OwnedSemaphorePermit>,
    total: Option<OwnedSemaphorePermit>,
}

impl ConnectionSlot {
    /// The address of the client.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The limits of the port.
    #[must_use]
    pub fn limits(&self) -> &ListenLimits {
        &self.slots.port.limits
    }

    /// Waits until few enough other connections are pending. Returns false if that takes too long: the connection has to be
    /// closed. A connection that is pending already keeps its permission.
    pub async fn begin(&self) -> bool {
        if self.is_pending() {
            return true;
        }
        match tokio::time::timeout(self.limits().handshake_timeout, self.wait()).await {
            Ok(permit) => {
                self.slots.pending_metric.inc();
                *self.pending.lock().unwrap_or_else(PoisonError::into_inner) = Some(permit);
                true
            }
            Err(_) => {
                self.tidy();
                self.closed(ConnectionEnd::Wait);
                false
            }
        }
    }

    async fn wait(&self) -> PendingPermit {
        // The semaphores are never closed. A permit of the address comes first, so that the connections of an address that
        // has too many do not take permits of others.
        let address = match self.key {
            Some(key) => self.slots.pending_of(key).acquire_owned().await.ok(),
            None => None,
        };
        let total = self.slots.pending.clone().acquire_owned().await.ok();
        PendingPermit { address, total }
    }

    /// The first request has arrived: the connection is no longer pending.
    pub fn first_request(&self) {
        let permit = self.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(PendingPermit { address, total }) = permit {
            drop((address, total));
            self.slots.pending_metric.dec();
            self.tidy();
        }
    }

    /// Whether no request has arrived yet.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Counts and logs that a limit closes the connection.
    pub fn closed(&self, end: ConnectionEnd) {
        self.slots.closed(self.peer, end);
    }

    fn tidy(&self) {
        if let Some(key) = self.key {
            self.slots.tidy_pending(key);
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.first_request();
        self.slots.remove(self.key);
    }
}

#[cfg(test)]
mod tests;
