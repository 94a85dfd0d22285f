//! Records the resources that an ADS server sends to the proxies of a case, in canonical form: to create the goldens of a
//! case, or to compare servers.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use sluice_testkit::ads::{Limits, Protocol};
use sluice_testkit::parity::case::Case;
use sluice_testkit::parity::run::{dump_proxy, write_dump};

/// Records the resources that an ADS server sends to the proxies of a case.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Plaintext ADS port.
    #[arg(long, value_name = "ADDRESS")]
    server: SocketAddr,
    /// Protocol: delta or sotw.
    #[arg(long, value_parser = protocol, default_value = "sotw")]
    protocol: Protocol,
    /// Directory to write PROXY/TYPE.json to; `golden` in the case if not given.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Directory of the case, with `proxies.json`. The server must already have its objects.
    case: PathBuf,
}

fn protocol(name: &str) -> Result<Protocol, String> {
    let known = Protocol::ALL.into_iter().find(|protocol| protocol.name() == name);
    known.ok_or_else(|| format!("the protocol {name} is not one of delta, sotw"))
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let directory = arguments.case.canonicalize().with_context(|| format!("find {}", arguments.case.display()))?;
    let case = Case::read(&directory)?;
    let out = arguments.out.unwrap_or_else(|| case.dir.join("golden"));
    for proxy in &case.proxies {
        let dump = dump_proxy(arguments.server, arguments.protocol, proxy, &proxy.names, Limits::default()).await;
        write_dump(&out.join(&proxy.name), &dump.with_context(|| format!("dump the resources of {}", proxy.name))?)?;
    }
    Ok(())
}
