//! Writes the metrics of rules for descriptors: under our names, and under those of
//! envoyproxy/ratelimit if they are wanted; and those of limitador's namespaces.
//!
//! Other programs' counters do not end in `_total`, as OpenMetrics demands of counters. They are
//! untyped there, and counters in the older format.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;

use super::encode::{encode_count, encode_latency, read};
use super::{Metrics, Protocol};
use crate::config::MetricNames;
use crate::descriptors::{Domains, HitCounters};
use crate::server::Server;

/// The counters of one name: the domain, and the name below it.
type NamedCounters = (Box<str>, Box<[Box<str>]>, Arc<HitCounters>);

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, server: &Server) -> fmt::Result {
    #[cfg(feature = "limitador")]
    encode_limitador(encoder, server)?;
    let active = server.active();
    if !active.config.envoy.is_enabled() {
        return Ok(());
    }
    let rules = server.rules();
    let counters = rules.as_deref().map(named_counters).unwrap_or_default();
    encode_own(encoder, &counters)?;
    match active.config.envoy.metric_names {
        MetricNames::Tidegate => Ok(()),
        MetricNames::Ratelimit => {
            encode_ratelimit(encoder, &counters)?;
            encode_service(encoder, &server.metrics)
        }
    }
}

fn named_counters(rules: &Domains) -> Vec<NamedCounters> {
    let of_rule = |rule: &Arc<crate::descriptors::Rule>| {
        let domain = rule.stats.domain().to_owned();
        let counters = rule.stats.snapshot().into_iter();
        counters
            .map(|(path, counters)| (domain.as_str().into(), path, counters))
            .collect::<Vec<NamedCounters>>()
    };
    rules.rules().iter().flat_map(of_rule).collect()
}

/// Writes counters under our names. Rules whose names are the same are added up.
fn encode_own(encoder: &mut DescriptorEncoder<'_>, all: &[NamedCounters]) -> fmt::Result {
    let mut sums: BTreeMap<(&str, String), [u64; 4]> = BTreeMap::new();
    for (domain, path, counters) in all {
        let [_, (_, over), (_, near), (_, within), (_, shadow)] = counters.by_name();
        let shadow = read(shadow);
        let denied = read(over).saturating_sub(shadow);
        let sum = sums.entry((&**domain, path.join("."))).or_default();
        let values = [read(within), denied, shadow, read(near)];
        for (sum, value) in sum.iter_mut().zip(values) {
            *sum += value;
        }
    }
    let help = "Hits of rules for descriptors by outcome";
    let mut hits =
        encoder.encode_descriptor("tidegate_rule_hits", help, None, MetricType::Counter)?;
    for ((domain, rule), values) in &sums {
        for (outcome, value) in ["allowed", "denied", "shadow_denied"].iter().zip(values) {
            let labels = [("domain", *domain), ("rule", rule), ("outcome", outcome)];
            encode_count(&mut hits.encode_family(&labels)?, *value)?;
        }
    }
    let help = "Hits of rules for descriptors that were near the limit";
    let name = "tidegate_rule_near_limit_hits";
    let mut near = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for ((domain, rule), [.., value]) in &sums {
        let labels = [("domain", *domain), ("rule", rule)];
        encode_count(&mut near.encode_family(&labels)?, *value)?;
    }
    Ok(())
}

/// Writes counters under the names of envoyproxy/ratelimit. It has no labels for keys beyond the
/// second, so rules that differ only there are added up.
fn encode_ratelimit(encoder: &mut DescriptorEncoder<'_>, all: &[NamedCounters]) -> fmt::Result {
    for (place, (name, help)) in [
        ("total_hits", "Hits of rules"),
        ("over_limit", "Hits of rules over the limit"),
        ("near_limit", "Hits of rules near the limit"),
        ("within_limit", "Hits of rules within the limit"),
        ("shadow_mode", "Hits over the limit of rules in shadow mode"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut sums: BTreeMap<[String; 3], u64> = BTreeMap::new();
        for (domain, path, counters) in all {
            let label = |text: Option<&Box<str>>| text.map_or_else(String::new, |text| clean(text));
            let labels = [clean(domain), label(path.first()), label(path.get(1))];
            let (_, value) = counters.by_name()[place];
            *sums.entry(labels).or_default() += read(value);
        }
        let name = format!("ratelimit_service_rate_limit_{name}");
        let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Unknown)?;
        for ([domain, key1, key2], value) in sums {
            let mut labels = vec![("domain", domain), ("key1", key1)];
            if !key2.is_empty() {
                labels.push(("key2", key2));
            }
            encode_untyped(&mut metric.encode_family(&labels)?, value)?;
        }
    }
    Ok(())
}

fn encode_untyped(metric: &mut MetricEncoder<'_>, value: u64) -> fmt::Result {
    metric.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))
}

/// Writes the calls of each namespace under limitador's names.
#[cfg(feature = "limitador")]
fn encode_limitador(encoder: &mut DescriptorEncoder<'_>, server: &Server) -> fmt::Result {
    let limits = server.limitador.load();
    let Some(limits) = limits.as_ref() else {
        return Ok(());
    };
    let mut namespaces: Vec<_> = limits.namespaces().collect();
    namespaces.sort_by_key(|(name, _)| *name);
    for (place, (name, help)) in [
        ("authorized_calls", "Calls that were allowed"),
        ("authorized_hits", "Hits of calls that were allowed"),
        ("limited_calls", "Calls that were denied"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Unknown)?;
        for (namespace, found) in &namespaces {
            let counters = &found.counters;
            let counters = [
                &counters.authorized_calls,
                &counters.authorized_hits,
                &counters.limited_calls,
            ];
            let labels = [("limitador_namespace", *namespace)];
            encode_untyped(&mut metric.encode_family(&labels)?, read(counters[place]))?;
        }
    }
    Ok(())
}

/// Replaces the characters that envoyproxy/ratelimit replaces: `:`, `|`, and the dots of IPv4
/// addresses.
fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    // Addresses stand between other characters, as in `remote_address_10.0.0.1`.
    let is_other = |symbol: char| !(symbol.is_ascii_digit() || symbol == '.');
    for part in text.split_inclusive(is_other) {
        let (digits, rest) = part.split_at(part.find(is_other).unwrap_or(part.len()));
        let address = digits.trim_matches('.');
        if address.parse::<std::net::Ipv4Addr>().is_ok() {
            clean.push_str(&digits.replace(address, &address.replace('.', "_")));
        } else {
            clean.push_str(digits);
        }
        clean.push_str(&rest.replace([':', '|'], "_"));
    }
    clean
}

/// Writes the counters of the service itself under the names of envoyproxy/ratelimit.
fn encode_service(encoder: &mut DescriptorEncoder<'_>, metrics: &Metrics) -> fmt::Result {
    let method = [("grpc_method", "ShouldRateLimit")];
    let name = "ratelimit_service_total_requests";
    let mut total = encoder.encode_descriptor(name, "Requests", None, MetricType::Unknown)?;
    let requests = metrics.requests(Protocol::Grpc);
    encode_untyped(&mut total.encode_family(&method)?, requests)?;
    let name = "ratelimit_service_response_time_seconds";
    let help = "Duration of requests";
    let mut latency = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    encode_latency(
        &mut latency.encode_family(&method)?,
        metrics,
        Protocol::Grpc,
    )?;
    let name = "ratelimit_service_should_rate_limit_error";
    let help = "Requests that failed";
    let mut failed = encoder.encode_descriptor(name, help, None, MetricType::Unknown)?;
    for (kind, value) in [
        ("redis_error", read(&metrics.failed_descriptors)),
        ("service_error", metrics.refused_requests(Protocol::Grpc)),
    ] {
        encode_untyped(&mut failed.encode_family(&[("err_type", kind)])?, value)?;
    }
    for (name, help, value) in [
        (
            "ratelimit_service_config_load_success",
            "Configurations that were activated",
            &metrics.reloads,
        ),
        (
            "ratelimit_service_config_load_error",
            "Configurations that were rejected",
            &metrics.failed_reloads,
        ),
    ] {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Unknown)?;
        encode_untyped(&mut metric, read(value))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::clean;

    #[test]
    fn names_are_cleaned_as_ratelimit_does() {
        for (text, expected) in [
            ("remote_address_10.0.0.1", "remote_address_10_0_0_1"),
            ("10.0.0.1", "10_0_0_1"),
            ("a:b|c", "a_b_c"),
            ("v1.2", "v1.2"),
            ("1.2.3.4:80", "1_2_3_4_80"),
            ("999.1.1.1", "999.1.1.1"),
            ("héllo.1.2.3.4", "héllo.1_2_3_4"),
            ("", ""),
        ] {
            assert_eq!(clean(text), expected, "{text}");
        }
    }
}
