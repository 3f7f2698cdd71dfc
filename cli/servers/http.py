"""Servers of this machine that speak HTTP, asked while they start."""

import ssl
from collections.abc import Mapping

import httpx

_SECONDS = 5.0
#: No TLS is spoken here. A client that may speak it reads a file of authorities first, which takes
#: 20 ms of a processor each time.
_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def is_well(url: str, headers: Mapping[str, str] | None = None) -> bool:
    """Whether a server answers there, within 5 s and with success; `url` begins with `http:`."""
    try:
        answer = httpx.get(url, headers=headers, timeout=_SECONDS, verify=_NO_AUTHORITIES)
    except httpx.HTTPError:
        return False
    return answer.is_success
