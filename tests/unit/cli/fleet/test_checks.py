import socket

import pytest

from cli.fleet.checks import MIN_MEMORY_BYTES, require_free, require_memory
from shared.errors import SetupError


def test_too_little_memory_is_said_with_both_numbers() -> None:
    with pytest.raises(SetupError, match=r"1\.5 GiB .* needs 6"):
        require_memory(int(1.5 * 1024**3))


def test_just_enough_memory_is_enough() -> None:
    require_memory(MIN_MEMORY_BYTES)


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(SetupError, match=f"--port {port} is taken"):
            require_free(port)
