//! Client addresses: an address that the client cannot choose.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};
use smallvec::SmallVec;

use crate::forwarded::{address, forwarded_for, parts_from_the_right};
use crate::framework::Framework;
use crate::key::header_name;

/// A rule that determines a client's address.
///
/// 1. If the peer is not a trusted proxy, its address is the client's.
/// 2. Otherwise the forwarding header is read from the right. The first address that is not a
///    trusted proxy's is the client's. The left-most entry is never used as such: any client can
///    write it.
/// 3. If an entry cannot be parsed, the proxy that wrote it is the client.
///
/// IPv6 addresses are truncated to /64, because one client can have that many. An IPv4 address in
/// IPv6 notation is the IPv4 address.
///
/// # Examples
///
/// ```
/// use tidegate::tower::ClientAddress;
///
/// let direct = ClientAddress::peer();
/// let behind = ClientAddress::behind(["10.0.0.0/8", "fd00::/8"])?;
/// # Ok::<(), tidegate::tower::InvalidNetwork>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientAddress {
    trusted: Arc<[IpNet]>,
    source: ForwardingHeader,
    ipv6_prefix: u8,
}

/// The header that trusted proxies write.
#[derive(Clone, Debug)]
enum ForwardingHeader {
    XForwardedFor,
    Forwarded,
    /// A header with one address that the proxy overwrites.
    Single(Arc<str>),
}

/// The error for a text that is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a network: expected one such as 10.0.0.0/8, 192.0.2.7 or fd00::/8, with host bits zero and a prefix of at least 1"
)]
pub struct InvalidNetwork(String);

impl ClientAddress {
    /// Uses the peer's address and ignores all headers: for services that clients connect to
    /// directly.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{ClientAddress, Limits};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, ClientAddress::peer());
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peer() -> Self {
        Self {
            trusted: Arc::new([]),
            source: ForwardingHeader::XForwardedFor,
            ipv6_prefix: DEFAULT_IPV6_PREFIX,
        }
    }

    /// Uses the address that trusted proxies, given by their networks, write to X-Forwarded-For.
    ///
    /// # Errors
    ///
    /// Returns an error if one is not a network.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{ClientAddress, Limits};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, ClientAddress::behind(["10.0.0.0/8"])?);
    /// # let _ = limits;
    /// assert!(ClientAddress::behind(["everywhere"]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn behind<N: AsRef<str>>(
        proxies: impl IntoIterator<Item = N>,
    ) -> Result<Self, InvalidNetwork> {
        let trusted = proxies
            .into_iter()
            .map(|proxy| network(proxy.as_ref()))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            trusted,
            ..Self::peer()
        })
    }

    /// Reads Forwarded (RFC 7239) instead of X-Forwarded-For.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::ClientAddress;
    ///
    /// let address = ClientAddress::behind(["10.0.0.0/8"])?.forwarded();
    /// # let _ = address;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forwarded(mut self) -> Self {
        self.source = ForwardingHeader::Forwarded;
        self
    }

    /// Reads one address from a header that the proxy overwrites, such as `X-Real-IP` or
    /// `CF-Connecting-IP`. If the proxy passes a client's own header on, clients can choose their
    /// address.
    ///
    /// # Panics
    ///
    /// Panics if `name` is not a valid header name.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::ClientAddress;
    ///
    /// // The proxy overwrites this header.
    /// let address = ClientAddress::behind(["173.245.48.0/20"])?.single_header("cf-connecting-ip");
    /// # let _ = address;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn single_header(mut self, name: &str) -> Self {
        self.source = ForwardingHeader::Single(header_name(name).into());
        self
    }

    /// Sets the prefix length of IPv6 addresses. The default is 64, the maximum 128.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::ClientAddress;
    ///
    /// let address = ClientAddress::peer().ipv6_prefix(56);
    /// # let _ = address;
    /// ```
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = bits.min(128);
        self
    }

    /// Returns the client's address, truncated to its prefix. Returns `None` if the peer's address
    /// is missing.
    #[must_use]
    pub fn of<F: Framework>(&self, request: &F::Request) -> Option<IpAddr> {
        let peer = F::peer(request)?.canonical();
        if !self.is_trusted(peer) {
            return Some(truncate(peer, self.ipv6_prefix));
        }
        let mut lines = SmallVec::new();
        F::headers(request, self.header(), &mut lines);
        Some(truncate(self.walk(peer, &lines), self.ipv6_prefix))
    }

    /// Returns an address in canonical form, truncated to its prefix.
    pub(crate) fn truncated(&self, address: IpAddr) -> IpAddr {
        truncate(address.canonical(), self.ipv6_prefix)
    }

    /// Returns the prefix length of an address, or `None` if all bits count.
    pub(crate) fn prefix_bits(&self, address: IpAddr) -> Option<u8> {
        (address.is_ipv6() && self.ipv6_prefix < 128).then_some(self.ipv6_prefix)
    }

    fn header(&self) -> &str {
        match &self.source {
            ForwardingHeader::XForwardedFor => "x-forwarded-for",
            ForwardingHeader::Forwarded => "forwarded",
            ForwardingHeader::Single(name) => name,
        }
    }

    fn walk(&self, peer: IpAddr, lines: &[&[u8]]) -> IpAddr {
        let read = match &self.source {
            ForwardingHeader::XForwardedFor => address,
            ForwardingHeader::Forwarded => forwarded_for,
            // Two lines, or a list, do not come from a proxy that overwrites the header.
            ForwardingHeader::Single(_) => {
                let [line] = lines else { return peer };
                return address(line).map_or(peer, Canonical::canonical);
            }
        };
        let mut nearest = peer;
        for line in lines.iter().rev() {
            for entry in parts_from_the_right(line, b',').filter(|entry| !entry.is_empty()) {
                let Some(address) = read(entry) else {
                    return nearest;
                };
                nearest = address.canonical();
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
}

/// The default prefix length of IPv6 addresses: one client can have a whole /64.
const DEFAULT_IPV6_PREFIX: u8 = 64;

/// Returns the network that stands for one client: an IPv4 address, or the /64 of an IPv6 address.
///
/// # Examples
///
/// ```
/// use tidegate_http::client_network;
///
/// let network = client_network("2001:db8::7".parse()?);
/// assert_eq!(network, client_network("2001:db8::8".parse()?));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[must_use]
pub fn client_network(address: IpAddr) -> IpAddr {
    truncate(address.canonical(), DEFAULT_IPV6_PREFIX)
}

fn truncate(address: IpAddr, ipv6_prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let kept = u128::MAX
                .checked_shl(128 - u32::from(ipv6_prefix))
                .unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & kept))
        }
    }
}

/// The canonical form of an address: IPv4 even if it is in IPv6 notation.
trait Canonical {
    fn canonical(self) -> Self;
}

/// The IPv6 prefix that NAT64 gateways put before an IPv4 address (RFC 6052).
const NAT64: u128 = 0x0064_ff9b_0000_0000_0000_0000_0000_0000;

impl Canonical for IpAddr {
    fn canonical(self) -> Self {
        match self.to_canonical() {
            Self::V6(address) if address.to_bits() & !u128::from(u32::MAX) == NAT64 => {
                Self::V4(Ipv4Addr::from_bits(address.to_bits() as u32))
            }
            other => other,
        }
    }
}

/// Parses a network or an address. IPv4 in IPv6 notation becomes IPv4.
fn network(text: &str) -> Result<IpNet, InvalidNetwork> {
    let error = || InvalidNetwork(text.chars().filter(|c| !c.is_control()).take(64).collect());
    let text = text.trim();
    let net = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse().map_err(|_| error())?,
    };
    // Trusting all addresses would let clients choose theirs.
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
