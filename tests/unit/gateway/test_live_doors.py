import pytest

from gateway.live_doors import next_door
from shared.doors import Door


def doors(*, has_batches: bool) -> list[Door]:
    return [
        Door(name, "127.0.0.1", 1, "token", seats=2, has_batches=has_batches and name == "b")
        for name in "abc"
    ]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        # The one that all gateways take.
        ([0, 0, 0], "c"),
        ([0, 1, 0], "b"),
        # Without a seat of its own, a call goes to the next engine that has calls.
        ([1, 2, 0], "a"),
        ([0, 2, 0], "c"),
        ([4, 2, 3], "b"),
    ],
)
def test_beside_batches_calls_stay_on_few_engines(calls: list[int], expected: str) -> None:
    counts = dict(zip("abc", calls, strict=True))

    assert next_door(doors(has_batches=True), counts).replica == expected


def test_without_batches_the_engine_with_the_fewest_calls_gets_the_next() -> None:
    assert next_door(doors(has_batches=False), {"a": 2, "b": 0, "c": 1}).replica == "b"
