"""Where the fleet may call on a tenant's word: at public addresses, and in networks by name.

Used where a URL is given, and again on the very address that is connected to.
"""

import asyncio
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

#: Of IPv6, only this is unicast that anybody may reach.
_PUBLIC_IPV6 = IPv6Network("2000::/3")
#: IPv4 addresses lie in the last bits of these.
_NAT64 = IPv6Network("64:ff9b::/96")
#: What Python's own list leaves out, or leaves out in some versions.
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
    """A URL as it goes on the wire: all of it ASCII, without its fragment."""

    scheme: str
    #: A name, or an address without brackets.
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The header `host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _USUAL_PORTS[self.scheme] else f"{host}:{self.port}"


class RefusedAddressError(BatchyardError):
    """A host stands for an address that may not be called."""


class Guard:
    """Finds the addresses of a host and lets those pass that may be called."""

    def __init__(self, networks: Sequence[Network], *, resolve: Resolver | None = None) -> None:
        self._networks = networks
        # Of its own: a slow name server for one host must not take the process's few threads.
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
                # Not the address: it may come from names that only the inside knows.
                raise RefusedAddressError(f"'{host}' is not at a public address.")
        return [str(address) for address in found]

    def close(self) -> None:
        """Let go of the threads, without waiting for their name servers."""
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
            raise OSError(f"'{host}' is no name of a host.") from error
        return [str(answer[4][0]) for answer in answers]


def read_url(url: str) -> Target:
    """The one reading of a URL. Raises ValueError for one that is not of http or https."""
    if not url.isprintable() or " " in url:
        raise ValueError("There are spaces or control characters in the URL.")
    parts = _URL.validate_python(url)
    if parts.username or parts.password:
        raise ValueError("There is a user or a password in the URL.")
    # The type has neither a host nor a port that is unset.
    host = (parts.host or "").removeprefix("[").removesuffix("]")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, parts.port or _USUAL_PORTS[parts.scheme], path)


def is_allowed(address: Address, networks: Sequence[Network]) -> bool:
    """Whether it is public, or in one of the networks; what embeds an address is judged by it."""
    address = _plain(address)
    if any(address in network for network in networks):
        return True
    return all(map(_is_public, (address, *_embedded(address))))


def is_address(host: str) -> bool:
    """Whether a host is an address and no name."""
    try:
        parsed(host)
    except ValueError:
        return False
    return True


def parsed(text: str) -> Address:
    """An address from its text, as URLs and resolvers write it. Raises ValueError."""
    return ip_address(text.removeprefix("[").removesuffix("]").partition("%")[0])


def _is_public(address: Address) -> bool:
    if any(address in network for network in _REFUSED if network.version == address.version):
        return False
    if isinstance(address, IPv6Address) and address not in _PUBLIC_IPV6:
        return False
    return address.is_global and not address.is_multicast


def _plain(address: Address) -> Address:
    """An IPv4 address that came as IPv6, as itself: that is where a connection would go."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _embedded(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that tunnels would take out of it."""
    if isinstance(address, IPv6Address) and address.sixtofour is not None:
        yield address.sixtofour
