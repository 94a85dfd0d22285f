//! Sends requests while something changes. Every response has to be the expected one.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use futures::FutureExt;
use futures::future::{LocalBoxFuture, try_join_all};

use super::app::{AppReply, AppRequest};
use super::grpc_app::GrpcCall;
use super::pod_set::Pod;

/// Pause between two requests of a stream, so that they do not occupy the CPUs.
const PAUSE: Duration = Duration::from_millis(10);

/// Requests of each stream before the change begins, and after it is complete.
const MIN_REQUESTS: usize = 10;

/// A sequence of equal requests, one after the other.
pub struct Stream {
    send: Box<dyn Fn(usize) -> LocalBoxFuture<'static, Result<()>>>,
    sent: AtomicUsize,
}

impl Stream {
    /// Requests from a pod, on reused connections. `expected` must respond to each, as named by [`AppReply::responder`].
    #[must_use]
    pub fn new(from: Arc<Pod>, call: AppRequest, expected: &'static str) -> Self {
        Self::on_new_connections(from, call.reuse_connection(), expected)
    }

    /// The same on connections of their own, unless the request says otherwise.
    #[must_use]
    pub fn on_new_connections(from: Arc<Pod>, call: AppRequest, expected: &'static str) -> Self {
        Self::of(move |number| {
            let (from, call) = (from.clone(), call.clone());
            async move {
                let reply: AppReply = from.call(call.clone()).await?;
                if reply.responder() != expected {
                    bail!(
                        "{}; expected {expected} each time, but response {number} after {:?} is {:?}\n{}",
                        call.describe(from.workload.name),
                        reply.elapsed(),
                        reply.outcome,
                        from.stats_of(&call.host).await
                    );
                }
                Ok(())
            }
        })
    }

    /// gRPC calls from a pod. An application with one of these names and versions must answer each.
    #[must_use]
    pub fn of_grpc(from: Arc<Pod>, call: GrpcCall, expected: &'static [&'static str]) -> Self {
        Self::of(move |number| {
            let (from, call) = (from.clone(), call.clone());
            async move {
                let outcome = from.call_grpc(&call).await?;
                let is_expected = outcome.counts.keys().all(|responder| expected.contains(&responder.as_str()));
                ensure!(
                    is_expected,
                    "expected {expected:?}, but answer {number} to {call:?} is {outcome:?}\n{}",
                    from.grpc_app()?.log()
                );
                Ok(())
            }
        })
    }

    /// Requests by a function, which gets the number of the request and fails if the response is not the expected one.
    fn of<F>(send: impl Fn(usize) -> F + 'static) -> Self
    where
        F: Future<Output = Result<()>> + 'static,
    {
        Self { send: Box::new(move |number| send(number).boxed_local()), sent: AtomicUsize::new(0) }
    }

    async fn run(&self) -> Result<Infallible> {
        loop {
            (self.send)(self.sent.load(Ordering::Relaxed) + 1).await?;
            self.sent.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Waits until each stream has sent some further requests.
async fn send_more(streams: &[Stream]) {
    for stream in streams {
        let before = stream.sent.load(Ordering::Relaxed);
        while stream.sent.load(Ordering::Relaxed) < before + MIN_REQUESTS {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Sends requests before, during and after `change`. Returns its result and the number of requests.
///
/// # Errors
/// The change fails, or a response is not the expected one.
pub async fn under_load<T>(streams: &[Stream], change: impl Future<Output = Result<T>>) -> Result<(T, usize)> {
    let change = async {
        send_more(streams).await;
        let changed = change.await?;
        send_more(streams).await;
        anyhow::Ok(changed)
    };
    let changed = tokio::select! {
        changed = change => changed?,
        stopped = try_join_all(streams.iter().map(|stream| stream.run())) => match stopped {
            Err(error) => return Err(error),
            Ok(never) => bail!("{} streams ended", never.len()),
        },
    };
    Ok((changed, streams.iter().map(|stream| stream.sent.load(Ordering::Relaxed)).sum()))
}
