import pytest

from cli.client.downloads import download
from shared.errors import TransientError
from tests.unit.cli.client.breaking_server import breaking

_CONTENT = bytes(range(256)) * 4000


def test_a_broken_download_goes_on_where_it_broke() -> None:
    with breaking(_CONTENT, break_after=300_000) as (server, gateway):
        found = b"".join(download(gateway, "file-1"))

    assert found == _CONTENT
    assert server.sent == len(_CONTENT)


def test_a_gateway_without_ranges_sends_it_again_and_nothing_comes_twice() -> None:
    with breaking(_CONTENT, break_after=300_000, knows_ranges=False) as (server, gateway):
        found = b"".join(download(gateway, "file-1"))

    assert found == _CONTENT
    assert server.sent > len(_CONTENT)


def test_a_part_from_before_is_not_sent_again() -> None:
    with breaking(_CONTENT, break_after=10**9) as (server, gateway):
        found = b"".join(download(gateway, "file-1", start=1_000_000))

    assert found == _CONTENT[1_000_000:]
    assert server.sent == len(found)


def test_a_download_that_never_gets_further_ends() -> None:
    with (
        breaking(_CONTENT, break_after=0) as (_, gateway),
        pytest.raises(TransientError, match=r"does not answer|breaks each time"),
    ):
        gateway._patience = 0.2  # noqa: SLF001  # not ten seconds for a test
        list(download(gateway, "file-1"))
