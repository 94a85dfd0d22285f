use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use sluice_ca::{NewKey, RsaBits};
use sluice_model::CompliancePolicy;
use sluice_recording::ReplaySpeed;
use sluice_variables::{CONTROL_PLANE, State};

mod effects;

use super::{CertProvider, ClusterSource, Command, CommandLine, Config, ConfigError};

fn parse(arguments: &[&str]) -> Result<(Config, Option<Command>), String> {
    let arguments = ["sluiced"].iter().chain(arguments).map(|argument| (*argument).to_owned());
    let (line, unknown) = CommandLine::parse_lenient(arguments).map_err(|error| error.to_string())?;
    let config = Config::new(line.discovery, &unknown, |_| None).map_err(|error: ConfigError| error.to_string())?;
    Ok((config, line.command))
}

#[test]
fn command_line_of_istiod_is_accepted() {
    let (config, command) = parse(&[
        "discovery",
        "--monitoringAddr=:15014",
        "--log_output_level=default:info,ads:debug",
        "--domain",
        "example.org",
        "--keepaliveMaxServerConnectionAge",
        "30m",
        "--grpcAddr=",
        "--clusterAliases=a=b,c=d",
        "--registries",
        "Kubernetes",
        "--resync=1m",
        "--ctrlz_port=0",
    ])
    .expect("valid");
    assert_eq!(command, Some(Command::Discovery));
    assert_eq!(config.identity.domain, "example.org");
    assert_eq!(config.serving.max_connection_age.map(|age| age.as_secs()), Some(1800));
    assert!(config.ports.grpc.is_none() && config.profiles);
    assert_eq!(config.ports.monitoring.as_ref().map(ToString::to_string).as_deref(), Some(":15014"));
    assert_eq!(config.identity.cluster_aliases.len(), 2);
    assert_eq!(config.sources.local, ClusterSource::Kubernetes(None));
    // The value of --registries is the supported one.
    let warnings: Vec<_> = config.warnings.iter().filter(|warning| warning.starts_with("flag")).collect();
    assert_eq!(
        warnings,
        ["flag --resync=1m of istiod has no effect: watches continue without listing all objects again"]
    );
}

#[test]
fn profiles_are_served_unless_the_flag_says_no() {
    for (arguments, expect) in [(&["--profile"][..], true), (&["--profile=true"], true), (&["--profile=false"], false)]
    {
        assert_eq!(parse(arguments).expect("valid").0.profiles, expect, "{arguments:?}");
    }
    let (config, command) = parse(&["--profile", "discovery"]).expect("valid");
    assert!(config.profiles && command == Some(Command::Discovery), "the next argument is no value");
}

#[test]
fn dashed_flags_are_aliases_and_the_subcommand_is_optional() {
    let (config, command) =
        parse(&["--config-dir", "/x", "--remote-config-dir", "east=/y", "--http-addr", ""]).expect("valid");
    assert_eq!(command, None);
    assert_eq!(config.sources.local, ClusterSource::Directory("/x".into()));
    assert_eq!(config.sources.remotes.get("east"), Some(&ClusterSource::Directory("/y".into())));
    assert!(config.ports.http.is_none());
}

#[test]
fn recording_takes_the_place_of_all_sources() {
    let (config, _) = parse(&["--replayFile=/x.sluice", "--replay-speed=10x"]).expect("valid");
    assert_eq!(config.sources.local, ClusterSource::Recording("/x.sluice".into()));
    assert_eq!(config.sources.replay_speed, ReplaySpeed::Times(10.0));
    let (config, _) = parse(&["--replayFile=/x.sluice"]).expect("valid");
    assert_eq!(config.sources.replay_speed, ReplaySpeed::Max);
    for (arguments, expected) in [
        (&["--replayFile=/x", "--configDir=/y"][..], "--replayFile: conflicts with --configDir: a recording takes"),
        (&["--replayFile=/x", "--kubeconfig=/y"], "--replayFile: conflicts with --kubeconfig: "),
        (&["--replayFile=/x", "--remoteConfigDir=a=/y"], "--replayFile: conflicts with --remoteConfigDir: "),
        (&["--replayFile=/x", "--meshConfig=/y"], "--replayFile: conflicts with --meshConfig: "),
        (&["--replayFile=/x", "--replaySpeed=fast"], "--replaySpeed: expected max, or a positive number with x"),
        (&["--configDir=/y", "--replaySpeed=1x"], "--replaySpeed: has no effect without --replayFile"),
    ] {
        let error = parse(arguments).expect_err("invalid").to_string();
        assert!(error.starts_with(expected), "{arguments:?}: {error}");
    }
}

#[test]
fn controlz_listens_on_the_loopback_unless_told_otherwise() {
    let address = |flags: &[&str]| parse(flags).expect("valid").0.ports.controlz.map(|address| address.to_string());
    assert_eq!(address(&[]).as_deref(), Some("localhost:9876"));
    assert_eq!(address(&["--ctrlz_address=*", "--ctrlz_port=1"]).as_deref(), Some(":1"));
    assert_eq!(address(&["--ctrlz_address=::1"]).as_deref(), Some("[::1]:9876"));
    assert_eq!(address(&["--ctrlz-address="]), None);
    assert!(parse(&["--ctrlz_port=70000"]).is_err());
}

#[test]
fn webhooks_have_an_address_and_follow_the_environment() {
    let (config, _) = parse(&[]).expect("valid");
    assert!(config.ports.https.is_some() && config.warnings.is_empty());
    assert!(config.features.inject && config.features.native_sidecars.is_none());
    let (config, _) = parse(&["--httpsAddr="]).expect("valid");
    assert!(config.ports.https.is_none());
}

#[test]
fn invalid_values_name_the_flag() {
    let check = |arguments: &[&str], part: &str| {
        let error = parse(arguments).map(|_| ()).expect_err("invalid");
        assert!(error.contains(part), "{arguments:?}: {error}");
    };
    check(&["--grpcAddr=15010"], "--grpcAddr: \"15010\" has no port");
    check(&["--shutdownDuration=10"], "--shutdownDuration: \"10\" is not a duration");
    check(&["--log_output_level=ads:loud"], "--log_output_level");
    check(&["--log_target="], "--log_target");
    check(&["--clusterAliases=a"], "--clusterAliases: \"a\" is not of the form NAME=VALUE");
    check(&["--remoteConfigDir=Kubernetes=/x"], "--remoteConfigDir: Kubernetes is the local cluster");
    check(&["--remoteConfigDir=a=/x", "--remoteConfigDir=a=/y"], "cluster a is configured twice");
    check(&["--configDir=/x", "--kubeconfig=/y"], "conflicts with");
    check(&["--tls-min-version=VersionTLS11"], "--tls-min-version");
    check(&["--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA"], "--tls-cipher-suites");
    check(&["--tlsCertFile=/c", "--tlsKeyFile=/k"], "--tlsCertFile");
    check(&["--domain=a..b"], "--domain");
    check(&["--handshakeTimeout=0s"], "--handshakeTimeout: \"0s\" is no time limit");
    check(&["--firstRequestTimeout=10"], "--firstRequestTimeout: \"10\" is not a duration");
    check(&["--maxConnections=0"], "--maxConnections");
    check(&["--maxHeaderBytes=many"], "--maxHeaderBytes");
    check(&["--configDir"], "value");
    check(&["serve"], "serve");
}

#[test]
fn environment_is_read_with_the_names_of_istiod() {
    let (line, _) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("valid");
    let config = Config::new(line.discovery, &[], |name| match name {
        "PILOT_ENABLE_AMBIENT" => Some("true".to_owned()),
        "ISTIO_DUAL_STACK" => Some("F".to_owned()),
        "PILOT_TRACE_SAMPLING" => Some("0.5".to_owned()),
        "PILOT_PUSH_THROTTLE" => Some("7".to_owned()),
        "ISTIO_GPRC_MAXRECVMSGSIZE" => Some("16777216".to_owned()),
        "PILOT_MAX_REQUESTS_PER_SECOND" => Some("2.5".to_owned()),
        _ => None,
    })
    .expect("valid");
    assert!(config.features.ambient && !config.features.dual_stack);
    assert_eq!(config.features.trace_sampling_millipercent, 500);
    assert_eq!(config.features.push_throttle.map(usize::from), Some(7));
    assert_eq!(config.features.max_request_bytes.map(usize::from), Some(16 << 20));
    assert_eq!(config.features.max_streams_a_second.map(u32::from), Some(3));
    assert_eq!(config.warnings, [""; 0]);
}

#[test]
fn variables_of_istiod_have_an_effect_or_cause_a_warning() {
    let read = |variables: &[(&str, &str)]| {
        let (line, _) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("a command line");
        let value = |requested: &str| {
            let entry = variables.iter().find(|(name, _)| *name == requested);
            entry.map(|(_, value)| (*value).to_owned())
        };
        Config::new(line.discovery, &[], value).expect("valid")
    };
    let off = read(&[]).features;
    assert!(!off.http10 && !off.filter_gateway_clusters && !off.sidecar_ingress_tls && off.allocate_addresses);
    assert_eq!(off.sessions, sluice_model::SessionLabels::default());
    let on = read(&[
        ("PILOT_HTTP10", "true"),
        ("PILOT_FILTER_GATEWAY_CLUSTER_CONFIG", "1"),
        ("ENABLE_TLS_ON_SIDECAR_INGRESS", "true"),
        ("PILOT_ENABLE_IP_AUTOALLOCATE", "false"),
        ("PILOT_ENABLE_PERSISTENT_SESSION_FILTER", "true"),
        ("PILOT_PERSISTENT_SESSION_LABEL", "session"),
        ("PILOT_PERSISTENT_SESSION_HEADER_LABEL", ""),
        ("PILOT_DRAINING_LABEL", "draining"),
    ])
    .features;
    assert!(on.http10 && on.filter_gateway_clusters && on.sidecar_ingress_tls && !on.allocate_addresses);
    let sessions = sluice_model::SessionLabels {
        cookie: "session".into(),
        header: "".into(),
        enabled: true,
        draining: "draining".into(),
    };
    assert_eq!(on.sessions, sessions);

    let refused = |name: &str, value: &str| {
        let config = read(&[]).check_environment(&[(name.to_owned(), value.to_owned())]);
        config.is_err_and(|error| error.to_string().starts_with(&format!("environment: variable {name}={value:?}")))
    };
    assert!(
        refused("ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS", "true") && refused("PILOT_ENABLE_ALPN_FILTER", "false")
    );
    let environment =
        [("ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS", "true"), ("PILOT_MX_ADDITIONAL_LABELS", "team")];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let ignoring = read(&[("SLUICE_IGNORE_UNSUPPORTED_VARIABLES", "true")]);
    let warnings = ignoring.warnings.len();
    let ignoring = ignoring.check_environment(&environment).expect("the defaults are used");
    assert_eq!(ignoring.warnings.len(), warnings + 2);
    assert!(
        !refused("ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS", "False") && !refused("PILOT_ENABLE_ALPN_FILTER", "1"),
        "the supported value"
    );
}

#[test]
fn switches_of_multi_cluster_services_build_on_each_other() {
    use sluice_graph::MultiClusterOptions;
    use sluice_model::Kind;
    const ALL: &[&str] = &["ENABLE_MCS_SERVICE_DISCOVERY", "ENABLE_MCS_HOST", "ENABLE_MCS_CLUSTER_LOCAL"];
    let features = |names: &'static [&'static str]| {
        let (line, unknown) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("a command line");
        let variable = move |requested: &str| names.contains(&requested).then(|| "true".to_owned());
        Config::new(line.discovery, &unknown, variable).expect("valid").features
    };
    let reads = |names: &'static [&'static str]| {
        let ignored = features(names).ignored_kinds();
        [Kind::ServiceExport, Kind::ServiceImport].map(|kind| !ignored.contains(&kind))
    };
    assert_eq!((features(&[]).multi_cluster, reads(&[])), (None, [false, false]));
    assert_eq!(features(&["ENABLE_MCS_HOST", "ENABLE_MCS_CLUSTER_LOCAL"]).multi_cluster, None);
    assert_eq!(reads(&["ENABLE_MCS_SERVICE_DISCOVERY"]), [true, false]);
    let without_host = features(&["ENABLE_MCS_SERVICE_DISCOVERY", "ENABLE_MCS_CLUSTER_LOCAL"]).multi_cluster;
    assert_eq!(
        without_host,
        Some(MultiClusterOptions::default()),
        "hosts in cluster.local need those in clusterset.local"
    );
    let all = MultiClusterOptions { imported_hosts: true, cluster_local: true };
    assert_eq!((features(ALL).multi_cluster, reads(ALL)), (Some(all), [true, true]));
    let exporting = features(&["ENABLE_MCS_AUTO_EXPORT"]);
    assert_eq!((exporting.exports_services, exporting.multi_cluster), (true, None));
    assert_eq!(reads(&["ENABLE_MCS_AUTO_EXPORT"]), [true, false], "existing ServiceExports are not created");
    assert!(!features(ALL).exports_services);
    assert_eq!(features(ALL).multi_cluster_api.api_version(), "multicluster.x-k8s.io/v1alpha1");
    let (line, unknown) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("a command line");
    let variable = |requested: &str| match requested {
        "MCS_API_GROUP" => Some("net.gke.io".to_owned()),
        "MCS_API_VERSION" => Some("v1".to_owned()),
        _ => None,
    };
    let other = Config::new(line.discovery, &unknown, variable).expect("valid").features;
    assert_eq!(other.multi_cluster_api.api_version(), "net.gke.io/v1");
}

#[test]
fn kinds_of_the_gateway_api_can_be_disabled() {
    use sluice_model::Kind;
    let ignored = |name: &'static str, value: &'static str| {
        let (line, unknown) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("a command line");
        let variable = move |requested: &str| (requested == name).then(|| value.to_owned());
        let mut ignored = Config::new(line.discovery, &unknown, variable).expect("valid").features.ignored_kinds();
        ignored.retain(|kind| !matches!(kind, Kind::ServiceExport | Kind::ServiceImport));
        ignored
    };
    let experimental = [Kind::UDPRoute, Kind::XBackend, Kind::XBackendTrafficPolicy];
    assert_eq!(ignored("PILOT_ENABLE_ALPHA_GATEWAY_API", "true"), [Kind::InferencePool].into());
    assert_eq!(ignored("ENABLE_GATEWAY_API_INFERENCE_EXTENSION", "true"), experimental.into());
    assert_eq!(ignored("", "").len(), 4);
    let off = ignored("PILOT_ENABLE_GATEWAY_API", "false");
    assert!(off.contains(&Kind::KubernetesGateway) && off.contains(&Kind::XBackend) && !off.contains(&Kind::Gateway));
}

#[test]
fn kinds_can_be_ignored_by_their_definitions() {
    use sluice_model::Kind;
    let ignored = |ignore: &str, include: &str| {
        let (line, unknown) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("a command line");
        let variable = |name: &str| match name {
            "PILOT_IGNORE_RESOURCES" => Some(ignore.to_owned()),
            "PILOT_INCLUDE_RESOURCES" => Some(include.to_owned()),
            _ => None,
        };
        Config::new(line.discovery, &unknown, variable).expect("valid").features.ignored_kinds()
    };
    let one = ignored("wasmplugins.extensions.istio.io", "");
    assert!(one.contains(&Kind::WasmPlugin) && !one.contains(&Kind::VirtualService));
    let group = ignored("*.istio.io", "virtualservices.networking.istio.io");
    assert!(group.contains(&Kind::DestinationRule) && !group.contains(&Kind::VirtualService));
    assert!(!ignored("services.,*.", "").contains(&Kind::Service), "kinds without a definition are always read");
}

#[test]
fn authority_is_configured_with_the_names_of_istiod() {
    let read = |name: &'static str, value: &'static str| {
        let arguments = ["sluiced", "--tokenKeys=/keys", "--tokenKeys=east=/east"].map(str::to_owned);
        let (line, _) = CommandLine::parse_lenient(arguments).expect("valid");
        Config::new(line.discovery, &[], |wanted| (wanted == name).then(|| value.to_owned()))
    };
    let config = read("", "").expect("valid").security;
    let authority = config.authority.expect("an authority");
    assert_eq!(authority.directory, std::path::Path::new("./etc/cacerts"));
    assert_eq!((authority.grace_percent, authority.check_interval.as_secs()), (20, 3600));
    assert_eq!(authority.root_lifetime.as_secs(), 3650 * 24 * 3600);
    assert_eq!((authority.lifetimes.default.as_secs(), authority.lifetimes.max.as_secs()), (24 * 3600, 90 * 24 * 3600));
    assert!(authority.revocations && authority.jitter && !authority.in_cacerts && !authority.multi_root);
    assert_eq!(config.tokens.audiences, ["istio-ca"]);
    let keys = [("", "/keys"), ("east", "/east")].map(|(cluster, file)| (cluster.to_owned(), file.into()));
    assert_eq!(config.tokens.keys, keys.into());

    assert!(read("ENABLE_CA_SERVER", "false").expect("valid").security.authority.is_none());
    let config = read("MAX_WORKLOAD_CERT_TTL", "1h").expect("valid").security;
    assert_eq!(config.authority.expect("an authority").lifetimes.max.as_secs(), 3600);
    let rule = r#"{"issuer": "i", "jwks_uri": "https://i/keys", "audiences": ["a"]}"#;
    let rule = read("JWT_RULE", rule).expect("valid").security.tokens.rule.expect("a rule");
    assert_eq!(
        (rule.issuer.as_str(), rule.jwks_uri.as_str(), rule.audiences),
        ("i", "https://i/keys", vec!["a".to_owned()])
    );
    for (name, value) in [
        ("JWT_RULE", "issuer"),
        // No signer is named.
        ("EXTERNAL_CA", "ISTIOD_RA_KUBERNETES_API"),
        ("EXTERNAL_CA", "other"),
        ("PILOT_CERT_PROVIDER", "k8s.io/signer"),
        ("CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE", "101"),
        ("CA_TRUSTED_NODE_ACCOUNTS", "istio-system/ztunnel,broken"),
    ] {
        assert_eq!(read(name, value).expect_err(name).flag, name);
    }
    let accounts = read("CA_TRUSTED_NODE_ACCOUNTS", "istio-system/ztunnel,").expect("valid");
    assert_eq!(accounts.security.node_accounts, [("istio-system".into(), "ztunnel".into())].into());
}

#[test]
fn key_of_a_root_is_rsa_or_ec() {
    const SIZE: &str = "CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE";
    const CURVE: &str = "SLUICE_SELF_SIGNED_CA_ECC_CURVE";
    let read = |size: &str, curve: &str| {
        let (line, _) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("valid");
        let values = [(SIZE, size), (CURVE, curve)];
        let value =
            |wanted: &str| values.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned());
        Config::new(line.discovery, &[], value).map(|config| config.security.authority.expect("an authority").root_key)
    };
    assert_eq!(read("", "").expect("valid"), None);
    assert_eq!(read("4096", "").expect("valid"), RsaBits::new(4096).map(NewKey::Rsa));
    assert_eq!(read("", "P384").expect("valid"), Some(NewKey::EcdsaP384));
    for weak in ["1024", "2047", "many"] {
        let error = read(weak, "").expect_err(weak).to_string();
        assert_eq!(error, format!("{SIZE}: {weak:?} is not supported: use 2048, 3072, 4096, 8192"));
    }
    assert_eq!(read("", "P521").expect_err("unknown").flag, CURVE);
    assert!(read("2048", "P256").expect_err("both").to_string().contains("conflicts with"));
}

#[test]
fn unknown_compliance_policy_is_an_error() {
    let read = |value: &'static str| {
        let (line, _) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("valid");
        let config =
            Config::new(line.discovery, &[], |wanted| (wanted == "COMPLIANCE_POLICY").then(|| value.to_owned()));
        config.map(|config| (config.security.compliance, config.warnings))
    };
    assert_eq!(read("").expect("none").0, None);
    for (name, policy) in CompliancePolicy::NAMES {
        let (read, warnings) = read(name).expect(name);
        assert_eq!(read, Some(policy));
        assert!(!warnings.iter().any(|warning| warning.contains("COMPLIANCE_POLICY")), "{warnings:?}");
    }
    let unknown = read("fips").expect_err("unknown").to_string();
    assert_eq!(unknown, "COMPLIANCE_POLICY: \"fips\" is not supported: use fips-140-2, fips-140-3, pqc");
}

#[test]
fn server_certificate_comes_from_the_authority_a_signer_or_files() {
    let provider = |text: &str| {
        let (line, unknown) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("flags");
        let variable = |name: &str| (name == "PILOT_CERT_PROVIDER").then(|| text.to_owned());
        Config::new(line.discovery, &unknown, variable).map(|config| config.security.provider)
    };
    assert_eq!(provider(""), Ok(CertProvider::Authority));
    assert_eq!(provider("istiod"), Ok(CertProvider::Authority));
    let signer = "clusterissuers.cert-manager.io/istio-system";
    assert_eq!(provider(&format!("k8s.io/{signer}")), Ok(CertProvider::Signer(signer.to_owned())));
    for text in ["none", "custom"] {
        assert_eq!(provider(text), Ok(CertProvider::None));
    }
    for text in ["kubernetes", "k8s.io/", "k8s.io/mesh", "k8s.io//mesh", "k8s.io/a/b/c"] {
        let error = provider(text).expect_err(text);
        assert!(error.flag == "PILOT_CERT_PROVIDER" && error.reason.contains(text), "{error}");
    }
}

#[test]
fn invalid_variable_is_an_error_with_the_accepted_values() {
    for (name, value, reason) in [
        ("ISTIO_DUAL_STACK", "maybe", "\"maybe\" is not supported: use true or false"),
        ("PILOT_REMOTE_CLUSTER_TIMEOUT", "30", "\"30\" is not supported: use a duration such as 24h"),
        ("PILOT_JWT_PUB_KEY_REFRESH_INTERVAL", "0s", "\"0s\" is not supported: use a duration above 0 such as 20m"),
        ("PILOT_TRACE_SAMPLING", "101", "\"101\" is not supported: use a number from 0 to 100"),
        ("PILOT_PUSH_THROTTLE", "-1", "\"-1\" is not supported: use a number from 0 to 1000000000"),
        (
            "PILOT_IP_AUTOALLOCATE_IPV4_PREFIX",
            "10.0.0.0",
            "\"10.0.0.0\" is not supported: use a CIDR block such as 240.240.0.0/16",
        ),
        ("BLOCKED_CIDRS_IN_JWKS_URIS", "10.0.0.0/8,x", "\"x\" is not a CIDR block such as 10.0.0.0/8"),
        ("ENABLE_NATIVE_SIDECARS", "yes", "\"yes\" is not supported: use one of true, false, auto"),
        ("PILOT_JWT_ENABLE_REMOTE_JWKS", "x", "\"x\" is not supported: use one of false, istiod, hybrid, true, envoy"),
    ] {
        let (line, _) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("a command line");
        let variable = |wanted: &str| (wanted == name).then(|| value.to_owned());
        let error = Config::new(line.discovery, &[], variable).map(|_| ()).expect_err(name);
        assert_eq!(error, ConfigError { flag: name, reason: reason.to_owned() });
    }
}

/// Reading a variable that is not listed, or with another default than the listed one, fails by a debug assertion.
#[test]
fn every_listed_variable_is_read() {
    let asked = RefCell::new(BTreeSet::new());
    for signer in [None, Some("ISTIOD_RA_KUBERNETES_API")] {
        let (line, unknown) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("flags");
        let read = Config::new(line.discovery, &unknown, |name| {
            asked.borrow_mut().insert(name.to_owned());
            match name {
                "EXTERNAL_CA" => signer.map(str::to_owned),
                "K8S_SIGNER" => Some("example.com/signer".to_owned()),
                "OTEL_TRACES_EXPORTER" => Some("otlp".to_owned()),
                "OTEL_TRACES_SAMPLER" => Some("traceidratio".to_owned()),
                _ => None,
            }
        });
        read.expect("a configuration");
    }
    // The Kubernetes client reads this one.
    asked.borrow_mut().insert("KUBERNETES_SERVICE_HOST".to_owned());
    let listed = |state: State| sluice_variables::all(CONTROL_PLANE).filter(move |variable| variable.state == state);
    let followed: BTreeSet<String> = listed(State::Followed).map(|variable| variable.name.to_owned()).collect();
    assert_eq!(followed, asked.into_inner());

    let command = <CommandLine as clap::CommandFactory>::command();
    let of_flags: BTreeMap<String, (String, String)> = command
        .get_arguments()
        .filter_map(|argument| {
            let text = |values: &[clap::builder::OsStr]| {
                values.first().and_then(|value| value.to_str()).unwrap_or("").to_owned()
            };
            let sets = format!("Sets `--{}`", argument.get_long()?);
            Some((argument.get_env()?.to_str()?.to_owned(), (text(argument.get_default_values()), sets)))
        })
        .collect();
    let listed: BTreeMap<String, (String, String)> = listed(State::Flag)
        .map(|variable| {
            let default = if variable.default == "false" {
                of_flags[variable.name].0.clone()
            } else {
                variable.default.to_owned()
            };
            (variable.name.to_owned(), (default, variable.about.to_owned()))
        })
        .collect();
    assert_eq!(listed, of_flags);
}

#[test]
fn details_of_proxies_follow_the_environment() {
    let read = |name: &'static str, value: &'static str| {
        let (line, _) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("a command line");
        let variable = |wanted: &str| (wanted == name).then(|| value.to_owned());
        Config::new(line.discovery, &[], variable).expect("valid").features
    };
    let default = read("", "");
    assert_eq!(default.clusters, sluice_graph::ClusterSwitches::default());
    assert_eq!((default.shadow_suffix, default.connections_per_event), (false, 1));
    assert_eq!(default.gateway_handshake_timeout.as_secs(), 15);
    assert!(read("DISABLE_SHADOW_HOST_SUFFIX", "false").shadow_suffix);
    assert!(read("DISABLE_TRACK_REMAINING_CB_METRICS", "false").clusters.tracks_remaining);
    assert!(!read("PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS", "false").clusters.sends_unhealthy_by_default);
    assert!(read("PILOT_SEND_UNHEALTHY_ENDPOINTS", "true").clusters.sends_unhealthy);
    let without_exchange = read("PILOT_DISABLE_MX_ALPN", "true");
    assert!(!without_exchange.clusters.peer_exchange);
    assert!(!read("ENABLE_100_CONTINUE_HEADERS", "false").continue_responses);
    assert!(read("PILOT_SIDECAR_USE_REMOTE_ADDRESS", "true").sidecar_remote_address);
    assert!(!read("PILOT_ENABLE_SIDECAR_LISTENING_HBONE", "false").sidecars_receive_hbone);
    assert_eq!(read("PILOT_ALLOW_ANY_DYNAMIC_DNS_MAX_HOSTS", "9").clusters.dns_cache_hosts, 9);
    assert_eq!(read("PILOT_HBONE_INITIAL_STREAM_WINDOW_SIZE", "65536").clusters.hbone_stream_window, 65_536);
    assert_eq!(read("PILOT_HBONE_INITIAL_CONNECTION_WINDOW_SIZE", "65536").clusters.hbone_connection_window, 65_536);
    assert_eq!(read("PILOT_DNS_CARES_UDP_MAX_QUERIES", "0").clusters.dns_udp_queries, 0);
    assert_eq!(read("PILOT_DNS_JITTER_DURATION", "0s").clusters.dns_jitter.as_secs(), 0);
    assert_eq!(read("MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP", "8").connections_per_event, 8);
    assert_eq!(read("PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT", "0s").gateway_handshake_timeout.as_secs(), 0);
}

#[test]
fn history_has_limits_of_age_and_memory() {
    let (config, _) = parse(&[]).expect("valid");
    assert_eq!((config.limits.history_age.as_secs(), config.limits.history_bytes), (3600, 64 << 20));
    let (config, _) = parse(&["--historyAge=10m", "--history-bytes", "0"]).expect("valid");
    assert_eq!((config.limits.history_age.as_secs(), config.limits.history_bytes), (600, 0));
    let error = parse(&["--historyAge=0s"]).expect_err("no time");
    assert!(error.contains("--historyAge"), "{error}");
}
