//! Compliance policy of TLS (P18), which overrides all other TLS settings.

use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::tls_parameters::{
    CompliancePolicy as EnvoyPolicy, TlsProtocol,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{CommonTlsContext, TlsParameters};
use sluice_model::CompliancePolicy;

/// Suites of TLS 1.2 that policies let be.
const SUITES: [&str; 4] = [
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
];

/// Limits a TLS context to what the policy allows.
pub(crate) fn enforce(policy: Option<CompliancePolicy>, context: &mut CommonTlsContext) {
    let Some(policy) = policy else { return };
    let params = context.tls_params.get_or_insert_with(TlsParameters::default);
    match policy {
        CompliancePolicy::Fips140V2 => {
            params.tls_minimum_protocol_version = TlsProtocol::TlSv12 as i32;
            params.tls_maximum_protocol_version = TlsProtocol::TlSv12 as i32;
            // Without a remaining cipher suite, and for curves, the defaults of an Envoy that is built for the policy apply.
            params.cipher_suites.retain(|suite| SUITES.contains(&suite.as_str()));
            params.ecdh_curves.clear();
        }
        CompliancePolicy::Fips140V3 => params.compliance_policies = vec![EnvoyPolicy::Fips202205 as i32],
        CompliancePolicy::PostQuantum => {
            params.tls_minimum_protocol_version = TlsProtocol::TlSv13 as i32;
            params.cipher_suites = SUITES.map(str::to_owned).to_vec();
            params.ecdh_curves = vec!["X25519MLKEM768".to_owned()];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enforced(policy: Option<CompliancePolicy>, params: Option<TlsParameters>) -> Option<TlsParameters> {
        let mut context = CommonTlsContext { tls_params: params, ..CommonTlsContext::default() };
        enforce(policy, &mut context);
        context.tls_params
    }

    #[test]
    fn compliance_policy_overrides_other_settings() {
        let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let configured = TlsParameters {
            tls_minimum_protocol_version: TlsProtocol::TlSv10 as i32,
            tls_maximum_protocol_version: TlsProtocol::TlSv13 as i32,
            cipher_suites: texts(&["AES128-SHA", "ECDHE-RSA-AES256-GCM-SHA384"]),
            ecdh_curves: texts(&["P-521"]),
            ..TlsParameters::default()
        };
        assert_eq!(enforced(None, None), None);
        assert_eq!(enforced(None, Some(configured.clone())), Some(configured.clone()));
        let (v12, v13) = (TlsProtocol::TlSv12 as i32, TlsProtocol::TlSv13 as i32);
        let only_12 = TlsParameters {
            tls_minimum_protocol_version: v12,
            tls_maximum_protocol_version: v12,
            ..TlsParameters::default()
        };
        assert_eq!(enforced(Some(CompliancePolicy::Fips140V2), None), Some(only_12.clone()));
        let left = TlsParameters { cipher_suites: texts(&["ECDHE-RSA-AES256-GCM-SHA384"]), ..only_12 };
        assert_eq!(enforced(Some(CompliancePolicy::Fips140V2), Some(configured.clone())), Some(left));
        // Envoy implements this policy itself: FIPS_202205, whose number is 0, overrides the other fields.
        let known = TlsParameters { compliance_policies: vec![0], ..configured.clone() };
        assert_eq!(enforced(Some(CompliancePolicy::Fips140V3), Some(configured.clone())), Some(known));
        let bare = TlsParameters { compliance_policies: vec![0], ..TlsParameters::default() };
        assert_eq!(enforced(Some(CompliancePolicy::Fips140V3), None), Some(bare));
        let quantum = TlsParameters {
            tls_minimum_protocol_version: v13,
            cipher_suites: texts(&SUITES),
            ecdh_curves: texts(&["X25519MLKEM768"]),
            ..configured.clone()
        };
        assert_eq!(enforced(Some(CompliancePolicy::PostQuantum), Some(configured)), Some(quantum));
    }
}
