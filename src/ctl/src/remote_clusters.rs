//! The `remote-clusters` subcommand: the clusters that each replica reads, and whether they are synced.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::answer_output::{elements, fail, print, text};
use crate::columns::{print_columns, table};
use crate::connect::connect;
use crate::operator_args::RemoteClustersArgs;

const EXIT_NOT_FOUND: u8 = 1;
const GAP: usize = 5;

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &RemoteClustersArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let clusters = connect(&args.server).and_then(|server| {
        let asked = server.get_all("clusterz", &[])?;
        let mut all = Vec::new();
        for (replica, answer) in asked.answers {
            for cluster in elements(&answer) {
                let mut cluster = cluster.clone();
                cluster["istiod"] = json!(replica.name);
                cluster["revision"] = json!(replica.revision);
                all.push(cluster);
            }
        }
        Ok((Value::from(all), asked.missing))
    });
    match clusters {
        Ok((clusters, missing)) => {
            missing.report(errors)?;
            print(args.output, &clusters, out, |clusters, out| {
                let fields = ["id", "secretName", "syncStatus", "istiod", "revision"];
                let rows = elements(clusters).iter().map(|it| fields.map(|field| text(it, field).to_owned()).to_vec());
                print_columns(&table(&["NAME", "SECRET", "STATUS", "ISTIOD", "REVISION"], rows), GAP, out)
            })?;
            Ok(missing.exit_code(0))
        }
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}
