import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.doctor import finding
from cli.doctor.finding import Finding, Level

_GOOD = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}


def _levels(found: list[Finding]) -> set[Level]:
    return {one.level for one in found}


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("7.0.15", Level.OK),
        ("8.2", Level.OK),
        ("6.2.14", Level.FAILED),
        ("10.0", Level.OK),
        ("", Level.SKIPPED),
    ],
)
def test_versions_are_compared_as_numbers(version: str, level: Level) -> None:
    assert finding.redis_version(version).level is level


@pytest.mark.parametrize(
    ("seconds", "level", "way"),
    [
        (1.9, Level.OK, "agrees"),
        (-1.9, Level.OK, "agrees"),
        (3.0, Level.WARNING, "3 s ahead of"),
        (-900.0, Level.FAILED, "900 s behind"),
    ],
)
def test_a_clock_that_differs_is_named_with_its_way(seconds: float, level: Level, way: str) -> None:
    found = finding.clock("s3", seconds)

    assert found.level is level
    assert way in found.says


@pytest.mark.parametrize("name", _GOOD)
def test_each_setting_of_redis_that_loses_batches_fails_alone(name: str) -> None:
    found = finding.redis_settings({**_GOOD, name: "other"})

    assert _levels(finding.redis_settings(_GOOD)) == {Level.OK}
    assert [one.says.split(" ")[0] for one in found if one.level is Level.FAILED] == [name]


@given(st.integers(0, 2**50), st.integers(1, 2**50))
def test_what_fills_up_warns_before_it_fails(used: int, total: int) -> None:
    order = [Level.OK, Level.WARNING, Level.FAILED]
    now, later = (
        finding.room("machine", "disk", size, total) for size in (used, used + total // 50)
    )

    assert order.index(now.level) <= order.index(later.level)
    assert bool(now.do) == (now.level is not Level.OK)
