//! What issuing a certificate costs: the request verified, the certificate signed and encoded. `cargo bench -p sluice-ca`.

use std::hint::black_box;
use std::time::{Duration, SystemTime};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rcgen::{CertificateParams, KeyPair};
use sluice_ca::{Authority, Terms, root};

fn issue(c: &mut Criterion) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
    let now = i64::try_from(now.as_secs()).expect("a time");
    let material = root::create("cluster.local", Duration::from_secs(3650 * 24 * 3600), now).expect("a root");
    let authority = Authority::new(&material, now).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let request = CertificateParams::default().serialize_request(&key).expect("a request");
    let request = request.pem().expect("its text");
    let identities = ["spiffe://cluster.local/ns/shop/sa/cart".to_owned()];
    let mut group = c.benchmark_group("issue");
    group.throughput(Throughput::Elements(1));
    group.bench_function("ecdsa-p256", |bencher| {
        bencher.iter(|| {
            let issued = authority.issue(black_box(&request), &identities, 0, Terms::default(), now);
            black_box(issued.expect("issued"))
        });
    });
    group.finish();
}

criterion_group!(benches, issue);
criterion_main!(benches);
