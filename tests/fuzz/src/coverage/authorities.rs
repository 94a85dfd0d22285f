//! Certificate requests, tokens and forwarded certificates.

use anyhow::Result;

use super::{CoverageTarget, of};
use crate::csr::SigningTarget;
use crate::identity::{CallerTarget, header};
use crate::jwt::TokenTarget;
use crate::rng::FuzzRng;
use crate::seeds::Seeds;

/// The first byte for an input that is read itself, for the second form of such an input, and for choices.
const PLAIN: u8 = 0;
const SECOND: u8 = 1;
const CHOICES: u8 = 2;

/// Certificate requests: DER, PEM, or choices.
pub(super) fn csr() -> Result<CoverageTarget> {
    let target = SigningTarget::new()?;
    let seeds = target.requests().to_vec();
    let texts: Vec<Vec<u8>> = seeds.iter().map(|der| crate::csr::to_pem(der).into_bytes()).collect();
    let check = move |first: u8, rest: &[u8]| match first % 3 {
        PLAIN => target.run_bytes(rest, false),
        SECOND => target.run_bytes(rest, true),
        _ => target.run_turn(&mut FuzzRng::of_bytes(rest)),
    };
    let words = ["-----BEGIN CERTIFICATE REQUEST-----", "-----END CERTIFICATE REQUEST-----", "-----BEGIN "];
    Ok(of(check).with_seeds(PLAIN, seeds).with_seeds(SECOND, texts).with_choices(CHOICES).with_words(words))
}

/// Tokens, key sets, or choices.
pub(super) fn jwt(seeds: &'static Seeds) -> Result<CoverageTarget> {
    let target = TokenTarget::new(seeds)?;
    let (token, keys) = target.examples();
    let check = move |first: u8, rest: &[u8]| match first % 3 {
        PLAIN => target.run_token(rest),
        SECOND => target.run_keys(rest),
        _ => target.run_turn(&mut FuzzRng::of_bytes(rest)),
    };
    let words =
        ["\"kty\":", "\"kid\":", "\"use\":", "\"alg\":", "\"crv\":", "\"RSA\"", "\"OKP\"", "\"P-256\"", "\"P-384\""];
    let target = of(check).with_seeds(PLAIN, [token.into_bytes()]).with_seeds(SECOND, [keys.into_bytes()]);
    Ok(target.with_choices(CHOICES).with_words(words))
}

/// `x-forwarded-client-cert`, or choices of credentials and of a node.
pub(super) fn xfcc(seeds: &'static Seeds) -> Result<CoverageTarget> {
    let target = CallerTarget::new(seeds)?;
    let headers = (0..100).map(|turn| header(&mut FuzzRng::new(1, turn)).0);
    let headers: Vec<Vec<u8>> = headers.chain([br"By=a;URI=spiffe://td/ns/\/sa/shop".to_vec()]).collect();
    let check = move |first: u8, rest: &[u8]| match first % 3 {
        CHOICES => target.run_turn(&mut FuzzRng::of_bytes(rest)),
        _ => target.run_header(rest),
    };
    let words = ["URI=", "By=", "Subject=\"", "DNS=", "spiffe://td/ns/", "/sa/", "\\\"", ";URI=\""];
    Ok(of(check).with_seeds(PLAIN, headers).with_choices(CHOICES).with_words(words))
}
