//! What the replicas of the control plane tell: debug pages, metrics, and a recording.

use std::io;
use std::time::Duration;

use super::archive::Archive;
use super::deadline::Deadline;
use super::recording;
use crate::connect::{Endpoint, QueryError, Server, seconds};

/// Debug pages of sluiced and of istiod that change nothing, need no parameters and end. `krtz` of istiod prints the data of
/// Secrets.
const PAGES: [&str; 27] = [
    "adsz",
    "ambientz",
    "authorizationz",
    "cachez",
    "clusterz",
    "collections",
    "config_sources",
    "configz",
    "connections",
    "endpointShardz",
    "endpointz",
    "epochs",
    "history",
    "inject",
    "instancesz",
    "list",
    "log",
    "mcsz",
    "mesh",
    "networkz",
    "panics",
    "push_status",
    "registryz",
    "rejects",
    "resourcesz",
    "syncz",
    "telemetryz",
];
/// Other pages, with the names of their files.
const OTHER_PAGES: [(&str, &str); 3] =
    [("/version", "version.txt"), ("/ready", "ready.txt"), ("/metrics", "metrics.txt")];
/// The largest recording.
const MAX_RECORDING_BYTES: usize = 128 << 20;
/// Time for the first step of a recording, which has all inputs, and for its end.
const RECORDING_ADDITIONAL_TIME: Duration = Duration::from_secs(60);

/// Adds the pages of each replica, and a recording of the first one.
pub(super) fn add_all(
    server: &Server,
    (istio_namespace, recording_duration): (&str, Duration),
    deadline: &Deadline,
    archive: &mut Archive,
) -> io::Result<()> {
    for replica in &server.replicas {
        let directory = format!("istio/{istio_namespace}/{}", replica.name);
        let debug = PAGES.iter().map(|page| (format!("/debug/{page}"), format!("debug/{page}.json")));
        let others = OTHER_PAGES.iter().map(|(path, file)| ((*path).to_owned(), (*file).to_owned()));
        for (path, file) in others.chain(debug) {
            let file = format!("{directory}/{file}");
            if deadline.is_over() {
                archive.note(&directory, "not complete: --timeout");
                return Ok(());
            }
            match server.bytes_of(replica, &path, &[]) {
                Ok(answer) => archive.add_answer(&file, &answer)?,
                // The other control plane has it.
                Err(QueryError::Response(_) | QueryError::NotFound(_) | QueryError::Invalid(_)) => {}
                Err(error @ (QueryError::PortForward { .. } | QueryError::Cluster(_))) => {
                    archive.note(&directory, &error.to_string());
                    break;
                }
                Err(error) => archive.note(&file, &error.to_string()),
            }
        }
    }
    if let Some(first) = server.replicas.first() {
        let directory = format!("istio/{istio_namespace}/{}", first.name);
        add_recording(server, first, &directory, recording_duration, archive)?;
    }
    Ok(())
}

fn add_recording(
    server: &Server,
    replica: &Endpoint,
    directory: &str,
    duration: Duration,
    archive: &mut Archive,
) -> io::Result<()> {
    let file = format!("{directory}/recording.sluice");
    let mut recorded = Vec::new();
    let parameter = seconds(duration);
    let timeout = duration + RECORDING_ADDITIONAL_TIME;
    let received = server.stream(replica, "record", &[("duration", &parameter)], timeout, &mut |chunk| {
        if recorded.len() + chunk.len() <= MAX_RECORDING_BYTES {
            recorded.extend_from_slice(chunk);
        }
    });
    if let Err(error) = received {
        archive.note(&file, &error.to_string());
        return Ok(());
    }
    match recording::redacted(&recorded) {
        Ok(redacted) => archive.append(&file, &redacted),
        Err(error) => {
            archive.note(&file, &error.to_string());
            Ok(())
        }
    }
}
