//! The comparison of the roots of two proxies.

use std::io::{self, Write};

use x509_parser::pem::Pem;

use super::args::RootcaCompareArgs;
use super::dump::ConfigDump;
use super::secrets;
use crate::answer_output::fail;
use crate::columns::{print_columns, table};
use crate::connect::{QueryError, connect_to_proxy};

/// The Secret with the roots of the mesh.
const ROOTS: &str = "ROOTCA";
/// Exit code if the roots differ.
const EXIT_DIFFERENT: u8 = 1;
const TITLES: [&str; 5] = ["ROOT", "SERIAL NUMBER", "NOT AFTER", "FIRST", "SECOND"];

/// A root certificate.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Root {
    der: Vec<u8>,
    subject: String,
    serial: String,
    not_after: String,
}

/// Prints whether two proxies have the same roots, and a table of all if they do not.
pub(super) fn run(args: &RootcaCompareArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let of = |proxy: &str| -> Result<(String, Vec<Root>), QueryError> {
        let envoy = connect_to_proxy(&args.cluster, proxy, &args.namespace, args.proxy_admin_port)?;
        let dump = super::of_envoy(&envoy, &[])?;
        let missing =
            || QueryError::NotFound(format!("{}: its Envoy has no root certificates ({ROOTS})", envoy.name()));
        Ok((envoy.name().to_owned(), roots_of(&dump).ok_or_else(missing)?))
    };
    match of(&args.first).and_then(|first| Ok((first, of(&args.second)?))) {
        Ok((first, second)) => report(&first, &second, out),
        Err(error) => fail(&error, super::EXIT_NOT_FOUND, errors),
    }
}

fn report(
    (first, of_first): &(String, Vec<Root>),
    (second, of_second): &(String, Vec<Root>),
    out: &mut dyn Write,
) -> io::Result<u8> {
    let is_in = |roots: &[Root], root: &Root| roots.iter().any(|other| other.der == root.der);
    let others: Vec<&Root> = of_second.iter().filter(|root| !is_in(of_first, root)).collect();
    if others.is_empty() && of_first.iter().all(|root| is_in(of_second, root)) {
        writeln!(out, "{first} and {second} have the same root certificates.")?;
        return Ok(0);
    }
    writeln!(
        out,
        "The root certificates of {first} and {second} differ. Mutual TLS between them needs a common root.\n"
    )?;
    let yes_or_no = |is_there| if is_there { "yes" } else { "no" };
    let rows = of_first.iter().chain(others).map(|root| {
        let there = [of_first, of_second].map(|roots| yes_or_no(is_in(roots, root)));
        [&root.subject, &root.serial, &root.not_after]
            .into_iter()
            .map(String::as_str)
            .chain(there)
            .map(str::to_owned)
            .collect()
    });
    print_columns(&table(&TITLES, rows), super::GAP, out)?;
    Ok(EXIT_DIFFERENT)
}

/// The roots of the mesh that an Envoy has. `None` if it has none.
fn roots_of(dump: &ConfigDump) -> Option<Vec<Root>> {
    let name = |entry: &serde_json::Value| {
        entry["name"].as_str() == Some(ROOTS) || entry["secret"]["name"].as_str() == Some(ROOTS)
    };
    let (_, entry) = dump.secrets().into_iter().find(|(_, entry)| name(entry))?;
    let pem = secrets::roots(&entry["secret"])?;
    let roots: Vec<Root> = Pem::iter_from_buffer(&pem).filter_map(|pem| root(&pem.ok()?)).collect();
    (!roots.is_empty()).then_some(roots)
}

fn root(pem: &Pem) -> Option<Root> {
    let certificate = pem.parse_x509().ok()?;
    let (serial, not_after) = secrets::serial_and_end(&certificate)?;
    Some(Root { der: pem.contents.clone(), subject: certificate.subject().to_string(), serial, not_after })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PEM: &str = include_str!("../../tests/recorded/certificate.pem");

    fn dump(pem: &str) -> ConfigDump {
        let dump = json!({"configs": [{
            "@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump",
            "dynamic_active_secrets": [{"name": ROOTS, "secret": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "name": ROOTS,
                "validation_context": {"trusted_ca": {"inline_string": pem}},
            }}],
        }]});
        ConfigDump::parse(dump.to_string().as_bytes()).expect("a dump")
    }

    #[test]
    fn roots_are_equal_in_any_order_and_number_and_others_are_listed() {
        let root = roots_of(&dump(PEM)).expect("roots").remove(0);
        assert_eq!((root.serial.as_str(), root.not_after.as_str()), ("1a2b3c", "2036-01-01T00:00:00Z"));
        let other = Root { der: vec![1], subject: "CN=other".to_owned(), serial: "7".to_owned(), ..root.clone() };
        let compare = |first: &[&Root], second: &[&Root]| {
            let of =
                |name: &str, roots: &[&Root]| (name.to_owned(), roots.iter().map(|root| (*root).clone()).collect());
            let mut out = Vec::new();
            let code = report(&of("a", first), &of("b", second), &mut out).expect("printed");
            (code, String::from_utf8(out).expect("UTF-8"))
        };
        let same = "a and b have the same root certificates.\n";
        assert_eq!(compare(&[&root, &other], &[&other, &root, &root]), (0, same.to_owned()));
        let (code, text) = compare(&[&root], &[&root, &other]);
        assert_eq!(code, EXIT_DIFFERENT);
        let line = text.lines().find(|line| line.contains("CN=other")).expect("a line");
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["CN=other", "7", "2036-01-01T00:00:00Z", "no", "yes"]);
        assert_eq!(roots_of(&dump("no certificate")), None);
    }
}
