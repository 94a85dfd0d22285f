//! Cryptography of TLS, for the control plane and the agent alike: the one library that does it, what a policy of compliance
//! (P18) lets be of it, and the verifier that takes everybody.

mod anybody;
mod policy;

pub use anybody::takes_everybody;
pub use policy::{protocols, provider};
pub use sluice_model::CompliancePolicy;

use rustls::{ClientConfig, ConfigBuilder, Error, WantsVerifier};

/// The start of a client's configuration under a policy.
///
/// # Errors
/// Nothing that the policy lets be can be set up.
pub fn client(policy: Option<CompliancePolicy>) -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, Error> {
    ClientConfig::builder_with_provider(provider(policy)).with_protocol_versions(protocols(policy))
}

/// Has the library gather, meanwhile, the entropy it begins with: that takes it a good part of a tenth of a second, and whoever
/// needs the first key would wait for it.
pub fn gather_entropy() {
    let gather = || {
        // Where this fails, what needs entropy will say so.
        let _ = provider(None).secure_random.fill(&mut [0]);
    };
    // Without a thread it is gathered when it is needed.
    let _ = std::thread::Builder::new().name("entropy".to_owned()).spawn(gather);
}

#[cfg(test)]
mod tests;
