//! Servers that are started again when they end.

use std::io;
use std::sync::Arc;

use anyhow::{Result, bail};
use sluice_tasks::restart;

/// Serves on a listener until the process ends. A server that ends or panics is started again, on a new listener of `bind`.
pub(crate) fn keep_serving<L, B, S>(
    name: &'static str,
    listener: L,
    bind: impl Fn() -> B + Send + Sync + 'static,
    serve: impl Fn(L) -> S + Send + Sync + 'static,
) where
    L: Send + 'static,
    B: Future<Output = io::Result<L>> + Send + 'static,
    S: Future<Output = Result<()>> + Send + 'static,
{
    let (bind, serve, mut first) = (Arc::new(bind), Arc::new(serve), Some(listener));
    tokio::spawn(restart::<(), _>(name, move || {
        let (bind, serve, listener) = (Arc::clone(&bind), Arc::clone(&serve), first.take());
        async move {
            let listener = match listener {
                Some(listener) => listener,
                None => bind().await?,
            };
            serve(listener).await?;
            bail!("the server has ended")
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn server_that_panics_or_ends_is_started_again_on_a_new_listener() {
        let (served, mut listeners) = tokio::sync::mpsc::unbounded_channel();
        let bound = AtomicUsize::new(1);
        let bind = move || std::future::ready(Ok(bound.fetch_add(1, Ordering::Relaxed) + 1));
        keep_serving("server of the test", 1, bind, move |listener| {
            let served = served.clone();
            async move {
                served.send(listener)?;
                assert_ne!(listener, 1, "a bug");
                match listener {
                    2 => Ok(()),
                    _ => std::future::pending().await,
                }
            }
        });
        for expected in 1..=3 {
            assert_eq!(listeners.recv().await, Some(expected));
        }
    }
}
