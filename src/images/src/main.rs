//! `sluice-images`: lays out the container images of Sluice, without a container engine.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use sluice_images::{Image, cni, control_plane, proxy, write_archive};

/// Lay out the images sluiced, sluice-agent and sluice-cni from binaries: each as an OCI image layout (a directory) and as a tar archive.
#[derive(Debug, Parser)]
#[command(name = "sluice-images", version)]
struct Arguments {
    /// Directory of sluiced, sluicectl, sluice-agent and sluice-cni.
    #[arg(long, value_name = "DIR", default_value = "target/release")]
    binaries: PathBuf,
    /// The Envoy of the image sluice-agent, as `make envoy` installs it.
    #[arg(long, value_name = "FILE", default_value = "tests/support/envoy/bin/envoy")]
    envoy: PathBuf,
    /// Directory of the images.
    #[arg(long, value_name = "DIR", default_value = "target/images")]
    out: PathBuf,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing else can be done if standard error is closed.
            let _ = writeln!(std::io::stderr(), "sluice-images: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    std::fs::create_dir_all(&arguments.out).with_context(|| format!("create {}", arguments.out.display()))?;
    let binaries = &arguments.binaries;
    let images: [Image; 3] = [control_plane(binaries)?, proxy(binaries, &arguments.envoy)?, cni(binaries)?];
    for image in &images {
        let title = image.name.split(':').next().unwrap_or(&image.name);
        let (layout, file) = (arguments.out.join(title), arguments.out.join(format!("{title}.tar")));
        let digest = image.write(&layout)?;
        write_archive(&layout, &file)?;
        let size = std::fs::metadata(&file)?.len();
        writeln!(std::io::stdout(), "{}\t{digest}\t{size} bytes\t{}", image.name, file.display())?;
    }
    Ok(())
}
