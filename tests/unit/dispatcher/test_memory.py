from pathlib import Path

import pytest

from dispatcher.memory import memory_limit, messages_within
from dispatcher.settings import DispatcherSettings
from shared.bus.topology import MAX_MESSAGE_BYTES

_GIB = 1024**3


@pytest.mark.parametrize(
    ("wanted", "limit", "held"),
    [(128, None, 128), (128, _GIB, 128), (1000, _GIB, 128), (128, 64 * 1024**2, 8), (128, 1, 1)],
)
def test_messages_in_hand_fit_into_half_of_the_memory_however_large_they_are(
    wanted: int, limit: int | None, held: int
) -> None:
    assert messages_within(wanted, limit) == held
    assert limit is None or held == 1 or held * MAX_MESSAGE_BYTES <= limit / 2


def test_the_default_fits_into_the_container_that_is_shipped() -> None:
    wanted = DispatcherSettings.model_fields["messages_in_hand"].default

    assert messages_within(wanted, _GIB) == wanted


@pytest.mark.parametrize(("text", "bytes_"), [("1073741824\n", _GIB), ("max\n", None)])
def test_the_limit_is_that_of_the_container(text: str, bytes_: int | None, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(text)

    assert memory_limit(tmp_path / "memory.max") == bytes_
    assert memory_limit(tmp_path / "absent") is None
