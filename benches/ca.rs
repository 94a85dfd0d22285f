//! Cost of issuing a certificate (verify the request, sign and encode the certificate), by the type of the root's key.
//! `cargo bench -p sluice-ca`.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock for the crate it measures")]

use std::hint::black_box;
use std::time::{Duration, SystemTime};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rcgen::{CertificateParams, KeyPair};
use sluice_ca::{Authority, LifetimeLimits, NewKey, RsaBits, root};

fn issue(c: &mut Criterion) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
    let now = i64::try_from(now.as_secs()).expect("a time");
    let key = KeyPair::generate().expect("a key");
    let request = CertificateParams::default().serialize_request(&key).expect("a request");
    let request = request.pem().expect("the PEM text");
    let identities = ["spiffe://cluster.local/ns/shop/sa/cart".to_owned()];
    let mut group = c.benchmark_group("issue");
    group.throughput(Throughput::Elements(1));
    for (name, root_key) in [("ecdsa-p256", NewKey::EcdsaP256), ("rsa-2048", NewKey::Rsa(RsaBits::DEFAULT))] {
        let lifetime = Duration::from_secs(3650 * 24 * 3600);
        let material = root::create("cluster.local", root_key, lifetime, now).expect("a root");
        let authority = Authority::new(&material, now).expect("an authority");
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let issued = authority.issue(black_box(&request), &identities, 0, LifetimeLimits::default(), now);
                black_box(issued.expect("issued"))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, issue);
criterion_main!(benches);
