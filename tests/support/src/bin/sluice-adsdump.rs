//! Records what an ADS server answers the proxies of a case, in canonical form: goldens of cases of one's own, or a
//! look at any server beside another.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use sluice_testkit::ads::Protocol;
use sluice_testkit::parity::case::Case;
use sluice_testkit::parity::run::{ask, write_dump};

/// Records what an ADS server answers the proxies of a case.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Plaintext ADS port.
    #[arg(long, value_name = "ADDRESS")]
    server: SocketAddr,
    /// Protocol to ask in: delta or sotw.
    #[arg(long, value_parser = protocol, default_value = "sotw")]
    protocol: Protocol,
    /// Directory to write PROXY/TYPE.json to; `golden` in the case if not given.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Directory of the case, with `proxies.json`; its objects are the server's affair.
    case: PathBuf,
}

fn protocol(name: &str) -> Result<Protocol, String> {
    let known = Protocol::ALL.into_iter().find(|protocol| protocol.name() == name);
    known.ok_or_else(|| format!("there is no protocol {name}"))
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let directory = arguments.case.canonicalize().with_context(|| format!("find {}", arguments.case.display()))?;
    let case = Case::read(&directory)?;
    let out = arguments.out.unwrap_or_else(|| case.dir.join("golden"));
    for proxy in &case.proxies {
        let dump = ask(arguments.server, arguments.protocol, proxy, &proxy.names).await;
        write_dump(&out.join(&proxy.name), &dump.with_context(|| format!("ask for {}", proxy.name))?)?;
    }
    Ok(())
}
