from typing import Any

import pytest

from shared.table.json_look import JsonLook


@pytest.mark.parametrize(
    ("values", "has_types"),
    [
        ([1, 2.5, None, "text", True], True),
        ([2**53, 0.5], True),
        ([2**53 + 1, 0.5], False),
        ([-(2**60), -1], True),
        ([[1, [2**60]], [[0.5]]], False),
        ([{"a": 2**60, "b": 0.5}], True),
        ([{"a": [{"b": 2**60}, {"b": 0.5}]}], False),
        ([{str(n): n for n in range(200)}], True),
        ([{str(n): n for n in range(201)}], False),
        ([{"a": [{str(n): n} for n in range(200)]}], False),
    ],
)
def test_maps_and_numbers_that_would_be_rounded_have_no_types(
    values: list[Any], has_types: bool
) -> None:
    assert JsonLook().has_types(values) is has_types


def test_what_was_seen_before_counts() -> None:
    look = JsonLook()

    assert look.has_types([{"a": 1, "n": 2**60}])
    assert look.has_types([{f"a{n}": 1 for n in range(150)}])
    assert not look.has_types([{"n": 0.5}])
