//! By which address a client is known: never by one that it could choose.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};
use smallvec::SmallVec;

use crate::forwarded::{address, forwarded_for, parts_from_the_right};
use crate::framework::Framework;
use crate::key::header_name;

/// By which address a client is known.
///
/// The peer's, unless that is a trusted proxy: then what proxies have written is read from the right, and the first
/// address that is not a trusted proxy's is the client's. Never the left-most, which anybody can write. What cannot be read
/// ends the walk: the last proxy is the client then.
///
/// IPv6 addresses are known by their /64, for anybody can have as many as that; an IPv4 address that is written as an
/// IPv6 one is the IPv4 address.
///
/// ```
/// use tidegate_http::ClientAddress;
///
/// let direct = ClientAddress::peer();
/// let behind = ClientAddress::behind(["10.0.0.0/8", "fd00::/8"])?;
/// # Ok::<(), tidegate_http::NotANetwork>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientAddress {
    trusted: Arc<[IpNet]>,
    source: Source,
    ipv6_prefix: u8,
}

/// What trusted proxies write.
#[derive(Clone, Debug)]
enum Source {
    XForwardedFor,
    Forwarded,
    /// One address, in a header that the proxy overwrites.
    Single(Arc<str>),
}

/// A text that is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a network: expected one such as 10.0.0.0/8, 192.0.2.7 or fd00::/8, without bits beyond its prefix, and not all there is"
)]
pub struct NotANetwork(String);

impl ClientAddress {
    /// The peer's address, whatever any header says: for services that clients connect to directly.
    pub fn peer() -> Self {
        Self {
            trusted: Arc::new([]),
            source: Source::XForwardedFor,
            ipv6_prefix: 64,
        }
    }

    /// The address that trusted proxies, by their networks, have written into X-Forwarded-For.
    ///
    /// # Errors
    /// If one is not a network.
    pub fn behind<N: AsRef<str>>(
        proxies: impl IntoIterator<Item = N>,
    ) -> Result<Self, NotANetwork> {
        let trusted = proxies
            .into_iter()
            .map(|proxy| network(proxy.as_ref()))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            trusted,
            ..Self::peer()
        })
    }

    /// Reads Forwarded (RFC 7239) in place of X-Forwarded-For, which is not looked at then.
    pub fn forwarded(mut self) -> Self {
        self.source = Source::Forwarded;
        self
    }

    /// Reads one address from a header that the proxy overwrites, such as `X-Real-IP` or `CF-Connecting-IP`, and no other.
    /// Where the proxy lets a client's own header through, clients can choose their address.
    ///
    /// # Panics
    /// If it is not the name of a header: a mistake in the program, found when it starts.
    pub fn single_header(mut self, name: &str) -> Self {
        self.source = Source::Single(header_name(name).into());
        self
    }

    /// By how many bits IPv6 addresses are known; 64 where not given, at most 128.
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = bits.min(128);
        self
    }

    /// The client's address, cut to its prefix; `None` where nobody has said who the peer is.
    #[must_use]
    pub fn of<F: Framework>(&self, request: &F::Request) -> Option<IpAddr> {
        let peer = F::peer(request)?.plain();
        if !self.is_trusted(peer) {
            return Some(self.cut(peer));
        }
        let mut lines = SmallVec::new();
        F::headers(request, self.header(), &mut lines);
        Some(self.cut(self.walk(peer, &lines)))
    }

    /// An address as it is known: plain, and cut to its prefix.
    pub(crate) fn known_as(&self, address: IpAddr) -> IpAddr {
        self.cut(address.plain())
    }

    /// How many bits of an address count.
    pub(crate) fn bits(&self, address: IpAddr) -> Option<u8> {
        (address.is_ipv6() && self.ipv6_prefix < 128).then_some(self.ipv6_prefix)
    }

    fn header(&self) -> &str {
        match &self.source {
            Source::XForwardedFor => "x-forwarded-for",
            Source::Forwarded => "forwarded",
            Source::Single(name) => name,
        }
    }

    fn walk(&self, peer: IpAddr, lines: &[&[u8]]) -> IpAddr {
        let read = match &self.source {
            Source::XForwardedFor => address,
            Source::Forwarded => forwarded_for,
            // Two lines, or a list, are not by a proxy that overwrites.
            Source::Single(_) => {
                let [line] = lines else { return peer };
                return address(line).map_or(peer, Plain::plain);
            }
        };
        let mut nearest = peer;
        for line in lines.iter().rev() {
            for entry in parts_from_the_right(line, b',').filter(|entry| !entry.is_empty()) {
                let Some(address) = read(entry) else {
                    return nearest;
                };
                nearest = address.plain();
                if !self.is_trusted(nearest) {
                    return nearest;
                }
            }
        }
        nearest
    }

    fn is_trusted(&self, address: IpAddr) -> bool {
        self.trusted
            .iter()
            .any(|network| network.contains(&address))
    }

    fn cut(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(address) => {
                let kept = u128::MAX
                    .checked_shl(128 - u32::from(self.ipv6_prefix))
                    .unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & kept))
            }
        }
    }
}

/// An IPv4 address however it is written.
trait Plain {
    fn plain(self) -> Self;
}

/// What gateways between IPv4 and IPv6 write before an IPv4 address (RFC 6052).
const NAT64: u128 = 0x0064_ff9b_0000_0000_0000_0000_0000_0000;

impl Plain for IpAddr {
    fn plain(self) -> Self {
        match self.to_canonical() {
            Self::V6(address) if address.to_bits() & !u128::from(u32::MAX) == NAT64 => {
                Self::V4(Ipv4Addr::from_bits(address.to_bits() as u32))
            }
            other => other,
        }
    }
}

/// A network, or one address; an IPv4 one that is written as IPv6 is the IPv4 one.
fn network(text: &str) -> Result<IpNet, NotANetwork> {
    let error = || NotANetwork(text.chars().filter(|c| !c.is_control()).take(64).collect());
    let text = text.trim();
    let net = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse().map_err(|_| error())?,
    };
    // Who trusts everybody lets clients choose their address.
    if net.addr() != net.network() || net.prefix_len() == 0 {
        return Err(error());
    }
    match net {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => match v6.addr().to_ipv4_mapped() {
            Some(v4) => Ipv4Net::new(v4, v6.prefix_len() - 96)
                .map(IpNet::V4)
                .map_err(|_| error()),
            None => Ok(net),
        },
        other => Ok(other),
    }
}
