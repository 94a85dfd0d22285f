//! TLS of the control plane and its clients: the crypto provider, its restrictions by compliance policy (P18), and clients with
//! and without server verification.

mod policy;
mod unverified;
mod verified;

pub use policy::{protocols, provider};
pub use sluice_model::CompliancePolicy;
pub use unverified::client_without_verification;
pub use verified::{ClientCertificate, ClientSetupError, Roots, verified_client};

use rustls::{ClientConfig, ConfigBuilder, Error, WantsVerifier};

/// A builder of a client configuration that follows a policy.
///
/// # Errors
/// The provider supports none of the protocol versions that the policy allows.
pub fn client(policy: Option<CompliancePolicy>) -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, Error> {
    ClientConfig::builder_with_provider(provider(policy)).with_protocol_versions(protocols(policy))
}

/// Collects the library's initial entropy on a separate thread. That takes up to 0.1 s, which would delay the first
/// key.
pub fn collect_entropy() {
    let collect = || {
        // A failure is reported by the code that needs entropy.
        let _ = provider(None).secure_random.fill(&mut [0]);
    };
    // Without the thread, entropy is collected when it is first needed.
    let _ = std::thread::Builder::new().name("entropy".to_owned()).spawn(collect);
}

#[cfg(test)]
mod tests;
