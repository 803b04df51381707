"""Which network addresses a fetch may connect to: public ones, by the standard library and microsoft-antissrf."""

from __future__ import annotations

import ipaddress
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

_COMPATIBLE = IPv6Network("::/96")
"""IPv4-compatible addresses (RFC 4291, section 2.5.5.1): deprecated, and an IPv4 address in disguise."""


@cache
def blocked_networks() -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks of microsoft-antissrf's recommended list: private, link-local, metadata, NAT64, 6to4 and more."""
    from AntiSSRF import IPAddressRanges  # type: ignore[import-untyped]  # brings requests, wanted on first use only

    return tuple(ipaddress.ip_network(text) for text in IPAddressRanges.recommended_latest)


def refusal(address: str) -> str | None:
    """Why this IP address is not to be connected to; None where it is public."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "not an IP address"
    ip = _unwrapped(ip)
    if ip.is_loopback:
        return "a loopback address"
    if ip.is_link_local:
        return "a link-local address"
    if not ip.is_global or ip.is_multicast or ip.is_reserved or ip.is_unspecified:
        return "not a public address"
    if any(ip in network for network in blocked_networks() if network.version == ip.version):
        return "not a public address"
    return None


def _unwrapped(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return ip.ipv4_mapped
        if ip in _COMPATIBLE and int(ip) > 1:
            return IPv4Address(int(ip))
    return ip
