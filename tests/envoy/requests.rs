//! Sends requests, waits for the expected responses, and reports unexpected ones.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use sluice_testkit::pods::app::{AppReply, AppRequest, AppResponse};
use sluice_testkit::pods::mesh::{Mesh, vip};

/// Longest wait until traffic follows the objects. If a client's Envoy knows a new Service earlier than the server's Envoy does, its
/// connection is one to any port, without the policies of the Service; it is closed after the drain time of 45 s.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(75);

/// Number of concurrent requests when many are sent.
const CONCURRENT_REQUESTS: usize = 8;

/// A Service of one scenario in namespace `shop`: its name, and the last octet of its address.
#[derive(Clone, Copy)]
pub(crate) struct Host(pub(crate) &'static str, pub(crate) u8);

impl Host {
    pub(crate) fn ip(self) -> String {
        format!("10.200.1.{}", self.1)
    }

    /// The object, with the pods of `selector`, HTTP on 80.
    pub(crate) fn service(self, selector: &str) -> String {
        self.service_with(selector, "[{name: http, port: 80, targetPort: http}]")
    }

    /// The object with these ports.
    pub(crate) fn service_with(self, selector: &str, ports: &str) -> String {
        let (name, ip) = (self.0, self.ip());
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  clusterIP: {ip}\n  \
             clusterIPs: [{ip}]\n  selector: {{{selector}}}\n  ports: {ports}\n---\n"
        )
    }

    /// A VirtualService for it; `http` are its routes, indented by two.
    pub(crate) fn routes(self, http: &str) -> String {
        let name = self.0;
        format!(
            "apiVersion: networking.istio.io/v1\nkind: VirtualService\n\
             metadata: {{name: {name}, namespace: shop}}\nspec:\n  hosts: [{name}]\n  http:\n{http}\n---\n"
        )
    }

    /// A DestinationRule with subsets for both versions.
    pub(crate) fn versions(self) -> String {
        let name = self.0;
        format!(
            "apiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
             metadata: {{name: {name}, namespace: shop}}\nspec:\n  host: {name}\n  subsets:\n  \
             - {{name: v1, labels: {{version: v1}}}}\n  - {{name: v2, labels: {{version: v2}}}}\n---\n"
        )
    }

    /// A DestinationRule of this traffic policy, YAML in one line.
    pub(crate) fn policy(self, policy: &str) -> String {
        let name = self.0;
        format!(
            "apiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
             metadata: {{name: {name}, namespace: shop}}\nspec:\n  host: {name}\n  \
             trafficPolicy: {{{policy}}}\n---\n"
        )
    }

    /// `GET /` of it.
    pub(crate) fn get(self) -> AppRequest {
        AppRequest::get(vip(&self.ip(), 80), self.0)
    }
}

/// The error of an unexpected response.
async fn unexpected(mesh: &Mesh, from: &str, call: &AppRequest, expected: &str, reply: &AppReply) -> String {
    let (sent, stats) = (call.describe(from), mesh.pods.pod(from).stats_of(&call.host).await);
    format!("{sent}; expected {expected}, but after {:?} received {:?}\n{stats}", reply.elapsed(), reply.outcome)
}

/// Sends requests until `expected` accepts the response: configuration arrives in steps.
pub(crate) async fn until(
    mesh: &Mesh,
    from: &str,
    call: &AppRequest,
    expected: &str,
    test: impl Fn(&AppReply) -> bool,
) -> Result<AppReply> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let reply = mesh.pods.pod(from).call(call.clone()).await?;
        if test(&reply) {
            return Ok(reply);
        }
        if Instant::now() > deadline {
            bail!("{}\ncontrol plane: {}", unexpected(mesh, from, call, expected, &reply).await, mesh.server_log());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Sends requests until `expected` responds, as named by [`AppReply::responder`].
pub(crate) async fn eventually(mesh: &Mesh, from: &str, call: &AppRequest, expected: &str) -> Result<AppReply> {
    // A request without a route times out: detect that soon.
    let call = AppRequest { timeout_ms: 1000, ..call.clone() };
    until(mesh, from, &call, expected, |reply| reply.responder() == expected).await
}

/// Sends one request; `expected` must accept the response.
pub(crate) async fn once(
    mesh: &Mesh,
    from: &str,
    call: &AppRequest,
    expected: &str,
    test: impl Fn(&AppReply) -> bool,
) -> Result<AppReply> {
    let reply = mesh.pods.pod(from).call(call.clone()).await?;
    if !test(&reply) {
        bail!("{}", unexpected(mesh, from, call, expected, &reply).await);
    }
    Ok(reply)
}

/// Sends that many requests; `expected` must respond to each.
pub(crate) async fn always(mesh: &Mesh, from: &str, call: &AppRequest, times: usize, expected: &str) -> Result<()> {
    let counts = count(mesh, from, call, times).await?;
    if counts.len() != 1 || !counts.contains_key(expected) {
        bail!(
            "{} {times} times; expected {expected} each time, but received {counts:?}\n{}",
            call.describe(from),
            mesh.pods.pod(from).stats_of(&call.host).await
        );
    }
    Ok(())
}

/// Waits until every response is the expected one. Other responses are possible while there is no route.
pub(crate) async fn until_stable(mesh: &Mesh, from: &str, call: &AppRequest, expected: &str) -> Result<()> {
    eventually(mesh, from, call, expected).await?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match always(mesh, from, call, 10, expected).await {
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => {}
            Ok(()) => return Ok(()),
        }
    }
}

/// Sends that many requests, some concurrently; returns how often each application responded.
pub(crate) async fn count(mesh: &Mesh, from: &str, call: &AppRequest, times: usize) -> Result<BTreeMap<String, usize>> {
    let pod = mesh.pods.pod(from);
    let mut replies = stream::iter(0..times).map(|_| pod.call(call.clone())).buffer_unordered(CONCURRENT_REQUESTS);
    let mut counts = BTreeMap::new();
    while let Some(reply) = replies.try_next().await? {
        *counts.entry(reply.responder()).or_default() += 1;
    }
    Ok(counts)
}

/// Sends that many requests; `expected` must respond to `part` percent, within six standard deviations.
pub(crate) async fn share(
    mesh: &Mesh,
    from: &str,
    call: &AppRequest,
    times: usize,
    expected: &[(&str, usize)],
) -> Result<BTreeMap<String, usize>> {
    let counts = count(mesh, from, call, times).await?;
    let known = counts.keys().all(|name| expected.iter().any(|(other, _)| other == name));
    let fits = expected.iter().all(|(name, percent)| {
        let value = counts.get(*name).copied().unwrap_or(0);
        // variance = n p (1 - p), so 36 variance = 36 n percent (100 - percent) / 10,000
        let (distance, bound) = ((value * 100).abs_diff(times * percent), 36 * times * percent * (100 - percent));
        distance * distance <= bound
    });
    if !known || !fits {
        bail!(
            "{} {times} times; expected about {expected:?} percent, but received {counts:?}\n{}",
            call.describe(from),
            mesh.pods.pod(from).stats_of(&call.host).await
        );
    }
    Ok(counts)
}

/// The answer of a reply.
pub(crate) fn answer(reply: AppReply) -> Result<AppResponse> {
    reply.outcome.map_err(anyhow::Error::msg)
}

/// Waits until `measure` is at least `expected`.
pub(crate) async fn until_counted<F: Future<Output = Result<usize>>>(
    what: &str,
    expected: usize,
    mut measure: impl FnMut() -> F,
) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let value = measure().await?;
        if value >= expected {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("expected {what} of at least {expected}, but it stays {value}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
