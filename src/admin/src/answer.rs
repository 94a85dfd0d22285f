//! JSON responses.

use std::collections::BTreeMap;
use std::io::{self, Write};

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use serde::Serialize;
use sluice_engine::Engine;
use tokio::sync::mpsc;

/// Parameters of a query.
pub(crate) type Parameters = BTreeMap<String, String>;

/// A value as JSON, indented if the query has `pretty`.
pub(crate) fn json(value: &impl Serialize, parameters: &Parameters) -> Response<Body> {
    let text =
        if parameters.contains_key("pretty") { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
    match text {
        Ok(mut text) => {
            text.push(b'\n');
            ([(header::CONTENT_TYPE, "application/json")], text).into_response()
        }
        Err(error) => fail(StatusCode::INTERNAL_SERVER_ERROR, &format!("the value cannot be encoded as JSON: {error}")),
    }
}

/// Size of the chunks of a streamed response in bytes.
pub(crate) const STREAM_CHUNK_BYTES: usize = 64 << 10;
/// Chunks of a streamed response that wait for the client.
const STREAM_CHUNKS_IN_FLIGHT: usize = 4;

/// As [`json`], for values that are read while they are written: a slow client delays the reading, so that memory stays
/// bounded. If the value cannot be encoded, the response ends early.
pub(crate) fn stream_json(value: impl Serialize + Send + 'static, parameters: &Parameters) -> Response<Body> {
    let pretty = parameters.contains_key("pretty");
    stream("application/json", move |sender| {
        let mut out = io::BufWriter::with_capacity(STREAM_CHUNK_BYTES, sender);
        let written = match pretty {
            true => serde_json::to_writer_pretty(&mut out, &value),
            false => serde_json::to_writer(&mut out, &value),
        };
        written.map_err(io::Error::from).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush())
    })
}

/// A response of this content type that a thread writes. It waits while too many chunks are in flight. If it fails, the response ends
/// early.
pub(crate) fn stream(
    content_type: &'static str,
    write: impl FnOnce(ChunkSender) -> io::Result<()> + Send + 'static,
) -> Response<Body> {
    let (sender, receiver) = mpsc::channel(STREAM_CHUNKS_IN_FLIGHT);
    tokio::task::spawn_blocking(move || {
        if let Err(error) = write(ChunkSender(sender.clone())) {
            // The client has left, or gets an incomplete response.
            let _ = sender.blocking_send(Err(error));
        }
    });
    let chunks = futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|chunk: io::Result<Bytes>| (chunk, receiver))
    });
    ([(header::CONTENT_TYPE, content_type)], Body::from_stream(chunks)).into_response()
}

/// Sends what is written as chunks, and waits while too many are in flight.
#[derive(Clone)]
pub(crate) struct ChunkSender(mpsc::Sender<io::Result<Bytes>>);

impl ChunkSender {
    /// Whether the client has left.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl Write for ChunkSender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A response with an error status. The reason is its text.
pub(crate) fn fail(status: StatusCode, reason: &str) -> Response<Body> {
    (status, format!("{reason}\n")).into_response()
}

/// A page, or a response with an error status.
pub(crate) type PageResult = Result<Response<Body>, Response<Body>>;

/// Reads the engine on a blocking thread, because a dump waits for the dataflow thread.
pub(crate) async fn read<T: Send + 'static>(
    engine: &Engine,
    read: impl FnOnce(&Engine) -> T + Send + 'static,
) -> Result<T, Response<Body>> {
    let engine = engine.clone();
    let result = tokio::task::spawn_blocking(move || read(&engine)).await;
    result.map_err(|error| fail(StatusCode::INTERNAL_SERVER_ERROR, &format!("the engine cannot be read: {error}")))
}

/// The response to a request that names no proxy.
pub(crate) fn missing_proxy_id() -> Response<Body> {
    let reason =
        "name a proxy as ?proxyID=POD.NAMESPACE: /debug/syncz lists the proxies that are connected to this instance";
    fail(StatusCode::BAD_REQUEST, reason)
}

/// The response to a request that names a proxy that is not connected, or that the viewer may not see.
pub(crate) fn not_connected() -> Response<Body> {
    // istioctl reads this text, and asks the next replica.
    let reason = "Proxy not connected to this Pilot instance. It may be connected to another instance.";
    fail(StatusCode::NOT_FOUND, reason)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt;
    use serde::Serializer;

    use super::*;

    /// A list of texts that counts those that are encoded.
    struct CountedTexts(Arc<AtomicUsize>);

    const TEXTS: usize = 20_000;
    const TEXT_BYTES: usize = 1_000;

    impl Serialize for CountedTexts {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_seq((0..TEXTS).map(|_| {
                self.0.fetch_add(TEXT_BYTES, Ordering::SeqCst);
                "x".repeat(TEXT_BYTES)
            }))
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn only_what_the_client_reads_soon_is_encoded() {
        let encoded = Arc::new(AtomicUsize::new(0));
        let mut body = stream_json(CountedTexts(encoded.clone()), &Parameters::new()).into_body();
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            read.extend_from_slice(&frame.expect("a frame").into_data().expect("data"));
            let ahead = encoded.load(Ordering::SeqCst).saturating_sub(read.len());
            let bound = (STREAM_CHUNKS_IN_FLIGHT + 2) * (STREAM_CHUNK_BYTES + TEXT_BYTES);
            assert!(ahead <= bound, "{ahead} bytes are ahead of the client");
        }
        let texts: Vec<String> = serde_json::from_slice(&read).expect("JSON");
        assert_eq!(texts.len(), TEXTS);
    }
}
