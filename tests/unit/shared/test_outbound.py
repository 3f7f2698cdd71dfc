from collections.abc import Sequence
from ipaddress import ip_network

import pytest

from shared.outbound import Guard, RefusedAddressError, Target, is_allowed, parsed, read_url

PRIVATE = [
    "0.0.0.0",
    "0.1.2.3",
    "10.1.2.3",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "224.0.1.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "3fff::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "172.32.0.1",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert not is_allowed(parsed(address), ())


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_public_is_allowed(address: str) -> None:
    assert is_allowed(parsed(address), ())


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "fd00::1"])
def test_a_named_network_is_allowed_and_nothing_beside_it(address: str) -> None:
    networks = (ip_network("10.1.0.0/16"), ip_network("fd00::/64"))

    assert is_allowed(parsed(address), networks)
    assert not is_allowed(parsed("10.2.0.1"), networks)
    assert not is_allowed(parsed("127.0.0.1"), networks)


async def test_one_refused_address_refuses_the_host() -> None:
    with pytest.raises(RefusedAddressError, match="'h' is not at a public address") as refused:
        await _guard("8.8.8.8", "10.0.0.7").addresses("h", 443)

    assert "10.0.0.7" not in str(refused.value)


async def test_a_public_host_has_its_addresses_once_each_and_in_order() -> None:
    guard = _guard("8.8.8.8", "1.1.1.1", "8.8.8.8")

    assert await guard.addresses("h", 443) == ["8.8.8.8", "1.1.1.1"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "[::1]"])
async def test_this_machine_is_refused_by_any_name(host: str) -> None:
    with pytest.raises(RefusedAddressError):
        await _system_guard().addresses(host, 443)


@pytest.mark.parametrize("host", ["", "x" * 70, "a..b", "nowhere.invalid"])
async def test_a_host_that_has_no_address_is_an_oserror(host: str) -> None:
    with pytest.raises(OSError, match=r".") as failed:
        await _guard().addresses(host, 443) if host == "" else await _system_guard().addresses(
            host, 443
        )

    assert not isinstance(failed.value, RefusedAddressError)


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [
        ("https://a.example", Target("https", "a.example", 443, "/"), "a.example"),
        ("http://a.example:8080/x?y=1#z", Target("http", "a.example", 8080, "/x?y=1"), None),
        (
            "https://BÜCHER.example/ü",
            Target("https", "xn--bcher-kva.example", 443, "/%C3%BC"),
            None,
        ),
        ("HTTPS://A.example", Target("https", "a.example", 443, "/"), "a.example"),
        ("http://[::1]:81/", Target("http", "::1", 81, "/"), "[::1]:81"),
        ("http://0x7f.1/", Target("http", "127.0.0.1", 80, "/"), "127.0.0.1"),
        ("https://2130706433/", Target("https", "127.0.0.1", 443, "/"), "127.0.0.1"),
    ],
)
def test_a_url_is_read_in_one_way(url: str, target: Target, authority: str | None) -> None:
    assert read_url(url) == target
    assert authority is None or read_url(url).authority == authority


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.example",
        "ftp://a.example",
        "https:a.example",
        "https:/a.example",
        "https:///a.example",
        "https:\\\\a.example",
        "https://",
        "https://a b.example",
        "https://a.example/\n",
        "https://a.example/\u2028",
        "https://user@a.example",
        "https://user:password@a.example",
        "https://a.example:99999",
        "file:///etc/passwd",
    ],
)
def test_what_is_no_plain_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_url(url)


def _guard(*addresses: str) -> Guard:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return Guard((), resolve=resolve)


def _system_guard() -> Guard:
    return Guard(())
