"""Connections to hosts that a tenant names: to checked addresses alone."""

import ssl
from collections.abc import Iterable

import httpcore

from shared.outbound import Guard

#: Addresses of a host that are tried: each may be slow to refuse.
_MAX_ADDRESSES = 4


def guarded_pool(
    guard: Guard, *, tls: ssl.SSLContext | None = None
) -> httpcore.AsyncConnectionPool:
    """Connections that the guard allows; each is used once. `tls` is httpcore's own by default."""
    return httpcore.AsyncConnectionPool(
        ssl_context=tls or httpcore.default_ssl_context(),
        max_connections=None,
        max_keepalive_connections=0,
        network_backend=GuardedNetwork(guard),
    )


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to the addresses that were checked, so that no second lookup can differ.

    httpcore starts TLS itself, for the host of the URL.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        failure: Exception | None = None
        for address in (await self._guard.addresses(host, port))[:_MAX_ADDRESSES]:
            try:
                return await self._network.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.NetworkError, httpcore.TimeoutException) as error:
                failure = error
        raise failure or OSError(f"'{host}' has no address.")
