"""Which addresses the fleet may call for a tenant: public ones, and those of allowed networks.

Checked when a URL is given, and again on the address that is connected to.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple

from pydantic import AnyHttpUrl, TypeAdapter

from shared.errors import BatchyardError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
#: The addresses of a host and port, as text. Raises OSError.
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

#: The only part of IPv6 that is global unicast.
_PUBLIC_IPV6 = IPv6Network("2000::/3")
#: Addresses in it embed an IPv4 address in their last bits.
_NAT64 = IPv6Network("64:ff9b::/96")
#: Not global, although Python, or some versions of it, take them for that.
_REFUSED = (
    IPv4Network("168.63.129.16/32"),  # Azure's services for its machines
    IPv4Network("192.0.0.0/24"),  # IETF's protocols; one cloud's metadata
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv6Network("2001::/23"),  # IETF's protocols, Teredo among them
    IPv6Network("2001:db8::/32"),
    IPv6Network("3fff::/20"),
)


_URL = TypeAdapter(AnyHttpUrl)
_USUAL_PORTS = {"http": 80, "https": 443}


class Target(NamedTuple):
    """A URL as it is sent: ASCII only, without its fragment."""

    scheme: str
    #: A name, or an address without brackets.
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of the `host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _USUAL_PORTS[self.scheme] else f"{host}:{self.port}"


class RefusedAddressError(BatchyardError):
    """A host has an address that may not be called."""


class Guard:
    """Looks up the addresses of hosts, and refuses those that may not be called."""

    def __init__(self, networks: Sequence[Network], *, resolve: Resolver | None = None) -> None:
        self._networks = networks
        # Its own threads, so that one slow name server does not use up those of the process.
        self._threads = ThreadPoolExecutor(64, thread_name_prefix="resolve")
        self._resolve = resolve or self._look_up

    async def addresses(self, host: str, port: int) -> list[str]:
        """Where to connect to.

        Raises RefusedAddressError if any of the host's addresses may not be called, and OSError
        if it has none.
        """
        found = [parsed(host)] if is_address(host) else await self._found(host, port)
        for address in found:
            if not is_allowed(address, self._networks):
                # Without the address, which may be known only inside the network.
                raise RefusedAddressError(f"'{host}' is not at a public address.")
        return [str(address) for address in found]

    def close(self) -> None:
        """Release the threads, without waiting for name servers."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _found(self, host: str, port: int) -> list[Address]:
        found = list(dict.fromkeys(parsed(text) for text in await self._resolve(host, port)))
        if not found:
            raise OSError(f"'{host}' has no address.")
        return found

    async def _look_up(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(
                self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            )
        except UnicodeError as error:
            raise OSError(f"'{host}' is not a host name.") from error
        return [str(answer[4][0]) for answer in answers]


def url_pattern(*, is_http_allowed: bool) -> str:
    """How every URL begins that may be called: a regular expression of Python and of ECMAScript."""
    return "^[Hh][Tt][Tt][Pp]" + ("[Ss]?" if is_http_allowed else "[Ss]") + r"://[^/\\]"


def read_url(url: str) -> Target:
    """Parse a URL, here and nowhere else. Raises ValueError unless it is an http or https URL."""
    if not url.isprintable() or " " in url:
        raise ValueError("The URL contains spaces or control characters.")
    if re.match(url_pattern(is_http_allowed=True), url) is None:
        # The parser below would read "https:a.example" as browsers do.
        raise ValueError("The URL is not absolute.")
    parts = _URL.validate_python(url)
    if parts.username or parts.password:
        raise ValueError("The URL contains a user name or a password.")
    # pydantic types host and port as optional, but an http URL has both.
    host = (parts.host or "").removeprefix("[").removesuffix("]")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, parts.port or _USUAL_PORTS[parts.scheme], path)


def is_allowed(address: Address, networks: Sequence[Network]) -> bool:
    """Whether the address, with any IPv4 address embedded in it, is public or in a network."""
    address = _plain(address)
    if any(address in network for network in networks):
        return True
    return all(map(_is_public, (address, *_embedded(address))))


def is_address(host: str) -> bool:
    """Whether a host is an address rather than a name."""
    try:
        parsed(host)
    except ValueError:
        return False
    return True


def parsed(text: str) -> Address:
    """The address that a URL or a resolver writes like this. Raises ValueError."""
    return ip_address(text.removeprefix("[").removesuffix("]").partition("%")[0])


def _is_public(address: Address) -> bool:
    if any(address in network for network in _REFUSED if network.version == address.version):
        return False
    if isinstance(address, IPv6Address) and address not in _PUBLIC_IPV6:
        return False
    return address.is_global and not address.is_multicast


def _plain(address: Address) -> Address:
    """An IPv4 address written as IPv6, as IPv4: that is where a connection would go."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _embedded(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses to which tunnels would forward."""
    if isinstance(address, IPv6Address) and address.sixtofour is not None:
        yield address.sixtofour
