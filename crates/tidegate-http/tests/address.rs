//! Client addresses. A client is never identified by an address that it could choose.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Head, Plain};
use tidegate_http::ClientAddress;

/// Returns the client's address. `behind` trusts proxies in 10.0.0.0/8, 192.0.2.53 and fd00::/8.
fn client_address(
    source: &ClientAddress,
    header: &'static str,
    peer: &str,
    lines: &[&[u8]],
) -> String {
    let headers = lines.iter().map(|line| (header, line.to_vec())).collect();
    let head = Head {
        headers,
        peer: Some(peer.parse().unwrap()),
        ..Head::default()
    };
    source.of::<Plain>(&head).unwrap().to_string()
}

fn behind() -> ClientAddress {
    ClientAddress::behind(["10.0.0.0/8", "192.0.2.53", "fd00::/8"]).unwrap()
}

type Case<'a> = (&'a str, &'a [&'a [u8]], &'a str);

fn check(source: &ClientAddress, header: &'static str, cases: &[Case<'_>]) {
    for (peer, lines, expected) in cases {
        let shown: Vec<_> = lines
            .iter()
            .map(|line| String::from_utf8_lossy(line))
            .collect();
        assert_eq!(
            client_address(source, header, peer, lines),
            *expected,
            "{header} {shown:?} from {peer}"
        );
    }
}

#[test]
fn x_forwarded_for_yields_the_rightmost_untrusted_address() {
    let cases: &[Case<'_>] = &[
        // From an untrusted peer, the header is ignored.
        ("203.0.113.9", &[], "203.0.113.9"),
        ("203.0.113.9", &[b"1.1.1.1"], "203.0.113.9"),
        ("203.0.113.9", &[b"10.0.0.1"], "203.0.113.9"),
        ("203.0.113.9", &[b"127.0.0.1"], "203.0.113.9"),
        ("203.0.113.9", &[b"1.1.1.1, 10.0.0.1"], "203.0.113.9"),
        ("2001:db8:1:2:3::4", &[b"1.1.1.1"], "2001:db8:1:2::"),
        ("192.0.2.54", &[b"1.1.1.1"], "192.0.2.54"),
        // From a trusted proxy, the right-most address that is not a trusted proxy counts.
        ("10.0.0.1", &[b"203.0.113.7"], "203.0.113.7"),
        ("192.0.2.53", &[b"203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"203.0.113.7, 10.1.1.1"], "203.0.113.7"),
        (
            "10.0.0.1",
            &[b"203.0.113.7, 10.1.1.1, 192.0.2.53, 10.9.9.9"],
            "203.0.113.7",
        ),
        ("10.0.0.1", &[b" 203.0.113.7 ,\t10.1.1.1 "], "203.0.113.7"),
        ("10.0.0.1", &[b"203.0.113.7,10.1.1.1"], "203.0.113.7"),
        // Spoofed addresses to the left of it are ignored.
        ("10.0.0.1", &[b"1.1.1.1, 203.0.113.7"], "203.0.113.7"),
        (
            "10.0.0.1",
            &[b"1.1.1.1, 2.2.2.2, 203.0.113.7, 10.1.1.1"],
            "203.0.113.7",
        ),
        ("10.0.0.1", &[b"10.0.0.2, 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"127.0.0.1, 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"unknown, 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"\", 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"\"1.1.1.1, 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b",,,, 203.0.113.7"], "203.0.113.7"),
        (
            "10.0.0.1",
            &[b"'; DROP TABLE users; --, 203.0.113.7"],
            "203.0.113.7",
        ),
        // Two header lines form one list. A line that the client adds is on the left.
        ("10.0.0.1", &[b"1.1.1.1", b"203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"203.0.113.7", b"10.1.1.1"], "203.0.113.7"),
        (
            "10.0.0.1",
            &[b"1.1.1.1, 2.2.2.2", b"203.0.113.7, 10.1.1.1"],
            "203.0.113.7",
        ),
        ("10.0.0.1", &[b"\"", b"203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"\xff\xfe", b"203.0.113.7"], "203.0.113.7"),
        // With proxies only, the farthest proxy counts.
        ("10.0.0.1", &[], "10.0.0.1"),
        ("10.0.0.1", &[b""], "10.0.0.1"),
        ("10.0.0.1", &[b" , ,"], "10.0.0.1"),
        ("10.0.0.1", &[b"10.1.1.1"], "10.1.1.1"),
        ("10.0.0.1", &[b"10.2.2.2, 10.1.1.1"], "10.2.2.2"),
        // An invalid entry ends the walk at the last proxy.
        ("10.0.0.1", &[b"unknown"], "10.0.0.1"),
        ("10.0.0.1", &[b"203.0.113.7, garbage"], "10.0.0.1"),
        ("10.0.0.1", &[b"203.0.113.7, garbage, 10.1.1.1"], "10.1.1.1"),
        ("10.0.0.1", &[b"203.0.113.7.8"], "10.0.0.1"),
        ("10.0.0.1", &[b"256.0.0.1"], "10.0.0.1"),
        ("10.0.0.1", &[b"0x7f.1"], "10.0.0.1"),
        ("10.0.0.1", &[b"2130706433"], "10.0.0.1"),
        ("10.0.0.1", &[b"203.0.113.07"], "10.0.0.1"),
        ("10.0.0.1", &[b"203.0.113.7/24"], "10.0.0.1"),
        ("10.0.0.1", &[b"203.0.113.7\0"], "10.0.0.1"),
        ("10.0.0.1", &[b"\xff203.0.113.7"], "10.0.0.1"),
        ("10.0.0.1", &[b"for=203.0.113.7"], "10.0.0.1"),
        ("10.0.0.1", &["203.0.113.７".as_bytes()], "10.0.0.1"),
        // Ports and brackets.
        ("10.0.0.1", &[b"203.0.113.7:4711"], "203.0.113.7"),
        ("10.0.0.1", &[b"203.0.113.7:99999"], "10.0.0.1"),
        ("10.0.0.1", &[b"203.0.113.7:"], "10.0.0.1"),
        ("10.0.0.1", &[b"[2001:db8:1:2::7]:4711"], "2001:db8:1:2::"),
        ("10.0.0.1", &[b"[2001:db8:1:2::7]"], "2001:db8:1:2::"),
        (
            "10.0.0.1",
            &[b"\"[2001:db8:1:2::7]:4711\""],
            "2001:db8:1:2::",
        ),
        ("10.0.0.1", &[b"[203.0.113.7]"], "10.0.0.1"),
        // IPv6 addresses count by /64, in any notation.
        ("10.0.0.1", &[b"2001:db8:1:2:3:4:5:6"], "2001:db8:1:2::"),
        (
            "10.0.0.1",
            &[b"2001:0db8:0001:0002:ffff:ffff:ffff:ffff"],
            "2001:db8:1:2::",
        ),
        ("10.0.0.1", &[b"2001:DB8:1:2::1"], "2001:db8:1:2::"),
        ("10.0.0.1", &[b"2001:db8:1:2:3:4:1.2.3.4"], "2001:db8:1:2::"),
        ("10.0.0.1", &[b"2001:db8:1:3::1"], "2001:db8:1:3::"),
        ("10.0.0.1", &[b"fe80::1%eth0"], "10.0.0.1"),
        ("10.0.0.1", &[b"2001:db8::1::2"], "10.0.0.1"),
        ("10.0.0.1", &[b"::1"], "::"),
        ("fd00::1", &[b"203.0.113.7"], "203.0.113.7"),
        (
            "fd12:3456::1",
            &[b"2001:db8:1:2::7, fd00::2"],
            "2001:db8:1:2::",
        ),
        // An IPv4 address in IPv6 notation counts as IPv4. Otherwise all of IPv4 would be one
        // network.
        ("::ffff:203.0.113.9", &[b"1.1.1.1"], "203.0.113.9"),
        ("::ffff:10.0.0.1", &[b"203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"::ffff:203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"::ffff:cb00:7107"], "203.0.113.7"),
        ("10.0.0.1", &[b"0:0:0:0:0:ffff:cb00:7107"], "203.0.113.7"),
        (
            "10.0.0.1",
            &[b"203.0.113.7, ::ffff:10.1.1.1"],
            "203.0.113.7",
        ),
        ("10.0.0.1", &[b"64:ff9b::203.0.113.7"], "203.0.113.7"),
        ("64:ff9b::cb00:7109", &[], "203.0.113.9"),
    ];
    assert!(cases.len() >= 60, "{}", cases.len());
    check(&behind(), "x-forwarded-for", cases);
    // Only the configured header is read.
    check(
        &behind(),
        "forwarded",
        &[("10.0.0.1", &[b"for=203.0.113.7"], "10.0.0.1")],
    );
    check(
        &behind(),
        "x-real-ip",
        &[("10.0.0.1", &[b"203.0.113.7"], "10.0.0.1")],
    );
}

#[test]
fn forwarded_yields_the_rightmost_untrusted_address() {
    let cases: &[Case<'_>] = &[
        ("203.0.113.9", &[b"for=1.1.1.1"], "203.0.113.9"),
        ("10.0.0.1", &[b"for=203.0.113.7"], "203.0.113.7"),
        (
            "10.0.0.1",
            &[b"For=203.0.113.7;proto=https;by=10.0.0.1"],
            "203.0.113.7",
        ),
        (
            "10.0.0.1",
            &[b"proto=https; FOR=\"203.0.113.7:4711\""],
            "203.0.113.7",
        ),
        (
            "10.0.0.1",
            &[b"for=\"[2001:db8:1:2::7]:4711\""],
            "2001:db8:1:2::",
        ),
        (
            "10.0.0.1",
            &[b"for=1.1.1.1, for=203.0.113.7, for=10.1.1.1"],
            "203.0.113.7",
        ),
        (
            "10.0.0.1",
            &[b"for=1.1.1.1", b"for=203.0.113.7"],
            "203.0.113.7",
        ),
        // An open quote does not hide the entries to its right.
        (
            "10.0.0.1",
            &[b"for=\"1.1.1.1, for=203.0.113.7"],
            "203.0.113.7",
        ),
        (
            "10.0.0.1",
            &[b"for=1.1.1.1;by=\"x, for=203.0.113.7"],
            "203.0.113.7",
        ),
        // A comma within quotes separates nothing.
        (
            "10.0.0.1",
            &[b"for=203.0.113.7;by=\"a, for=1.1.1.1\""],
            "203.0.113.7",
        ),
        // If the address is hidden, unknown, duplicate or missing, the last proxy counts.
        ("10.0.0.1", &[b"for=unknown"], "10.0.0.1"),
        ("10.0.0.1", &[b"for=_hidden"], "10.0.0.1"),
        ("10.0.0.1", &[b"for=1.1.1.1;for=2.2.2.2"], "10.0.0.1"),
        ("10.0.0.1", &[b"proto=https"], "10.0.0.1"),
        ("10.0.0.1", &[b"203.0.113.7"], "10.0.0.1"),
    ];
    check(&behind().forwarded(), "forwarded", cases);
    check(
        &behind().forwarded(),
        "x-forwarded-for",
        &[("10.0.0.1", &[b"203.0.113.7"], "10.0.0.1")],
    );
}

/// The address is the one that the proxy wrote, for any input of the client.
#[test]
fn a6_a_client_cannot_pose_as_the_trusted_proxy() {
    let mut random = fastrand::Rng::with_seed(6);
    let bad: [&[u8]; 9] = [
        b"\xff",
        b"\"",
        b"\\\"",
        b";",
        b",",
        b"\xc3\x28, 10.0.0.1",
        b"for=10.0.0.1",
        b"\"; for=10.0.0.1",
        b"\0\x80",
    ];
    for _ in 0..20_000 {
        let chosen: Vec<u8> = (0..random.usize(0..6))
            .flat_map(|_| *random.choice(&bad).unwrap())
            .copied()
            .collect();
        let line = [&chosen[..], b", 203.0.113.7"].concat();
        check(
            &behind(),
            "x-forwarded-for",
            &[("10.0.0.1", &[&line], "203.0.113.7")],
        );
        let line = [&chosen[..], b", for=203.0.113.7"].concat();
        check(
            &behind().forwarded(),
            "forwarded",
            &[("10.0.0.1", &[&line], "203.0.113.7")],
        );
        // The proxy quotes and escapes the Host that the client sent.
        let host: Vec<u8> = chosen
            .iter()
            .flat_map(|byte| match byte {
                b'"' | b'\\' => vec![b'\\', *byte],
                byte => vec![*byte],
            })
            .collect();
        let line = [b"for=203.0.113.7;host=\"", &host[..], b"\";proto=https"].concat();
        check(
            &behind().forwarded(),
            "forwarded",
            &[("10.0.0.1", &[&line], "203.0.113.7")],
        );
        let line = [b"host=\"", &host[..], b"\";for=203.0.113.7"].concat();
        check(
            &behind().forwarded(),
            "forwarded",
            &[("10.0.0.1", &[&line], "203.0.113.7")],
        );
    }
}

#[test]
fn a_single_address_header_is_read_from_trusted_proxies_only() {
    let cases: &[Case<'_>] = &[
        ("203.0.113.9", &[b"1.1.1.1"], "203.0.113.9"),
        ("10.0.0.1", &[b"203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"::ffff:203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"1.1.1.1, 203.0.113.7"], "10.0.0.1"),
        ("10.0.0.1", &[b"1.1.1.1", b"203.0.113.7"], "10.0.0.1"),
        ("10.0.0.1", &[b""], "10.0.0.1"),
        ("10.0.0.1", &[], "10.0.0.1"),
    ];
    check(&behind().single_header("X-Real-IP"), "x-real-ip", cases);
}

#[test]
fn ipv6_prefixes_apply_and_invalid_networks_are_rejected() {
    let wide = |bits| {
        client_address(
            &ClientAddress::peer().ipv6_prefix(bits),
            "",
            "2001:db8:1234:5678:9abc::1",
            &[],
        )
    };
    assert_eq!([128, 200].map(wide), ["2001:db8:1234:5678:9abc::1"; 2]);
    assert_eq!(
        [56, 48, 0].map(wide),
        ["2001:db8:1234:5600::", "2001:db8:1234::", "::"]
    );
    // A trusted network in IPv4-mapped IPv6 notation.
    let mapped = ClientAddress::behind(["::ffff:10.0.0.0/104"]).unwrap();
    assert_eq!(
        client_address(&mapped, "x-forwarded-for", "10.0.0.1", &[b"203.0.113.7"]),
        "203.0.113.7"
    );
    for bad in [
        "",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "10.0.0",
        "localhost",
        "10.0.0.0/8 ,",
        "fd00::1/8",
        "*",
        "0.0.0.0/0",
        "::/0",
    ] {
        let error = ClientAddress::behind([bad]).unwrap_err().to_string();
        assert!(error.contains("expected"), "{error}");
    }
}

#[test]
fn a_missing_peer_yields_no_address() {
    let head = Head {
        peer: None,
        headers: vec![("x-forwarded-for", b"1.1.1.1".to_vec())],
        ..Head::default()
    };
    assert_eq!(behind().of::<Plain>(&head), None);
}
