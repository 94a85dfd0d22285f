//! Parts of X.509 structures that certificates and requests share.

use std::net::IpAddr;

use der::asn1::{Any, Ia5String, OctetString, SetOfVec, Utf8StringRef};
use der::oid::{AssociatedOid, ObjectIdentifier};
use der::{Encode, Error};
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::{RdnSequence, RelativeDistinguishedName};

/// An extension with its content.
pub(crate) fn extension<T: AssociatedOid + Encode>(critical: bool, content: &T) -> Result<Extension, Error> {
    Ok(Extension { extn_id: T::OID, critical, extn_value: OctetString::new(content.to_der()?)? })
}

/// A distinguished name of one attribute.
pub(crate) fn single_attribute_name(attribute: ObjectIdentifier, text: &str) -> Result<RdnSequence, Error> {
    let value = Any::from(Utf8StringRef::new(text)?);
    let attributes = SetOfVec::try_from(vec![AttributeTypeAndValue { oid: attribute, value }])?;
    Ok(RdnSequence::from(vec![RelativeDistinguishedName::from(attributes)]))
}

/// The extension with DNS names, IP addresses and SPIFFE URIs. It is critical: no other field names the subject.
pub(crate) fn alternative_names(names: &[String]) -> Result<Extension, Error> {
    let general_name = |name: &String| {
        Ok(match name.parse::<IpAddr>().map(|address| address.to_canonical()) {
            Ok(IpAddr::V4(address)) => GeneralName::IpAddress(OctetString::new(address.octets())?),
            Ok(IpAddr::V6(address)) => GeneralName::IpAddress(OctetString::new(address.octets())?),
            Err(_) if name.starts_with("spiffe://") => GeneralName::UniformResourceIdentifier(Ia5String::new(name)?),
            Err(_) => GeneralName::DnsName(Ia5String::new(name)?),
        })
    };
    let names: Result<Vec<GeneralName>, Error> = names.iter().map(general_name).collect();
    extension(true, &SubjectAltName(names?))
}
