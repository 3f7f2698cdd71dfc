import itertools
import re
import time

import pytest

from shared.dataset.key_pattern import fits, key_pattern


@pytest.mark.parametrize(
    ("path", "key", "is_wanted"),
    [
        ("t/a.csv", "t/a.csv", True),
        ("t/", "t/a/b.csv", True),
        ("t/*.csv", "t/a.csv", True),
        ("t/*.csv", "t/a/b.csv", False),
        ("t/?.csv", "t/a.csv", True),
        ("t/?.csv", "t//.csv", False),
        ("t/?.csv", "t/ab.csv", False),
        ("t/**/b.csv", "t/b.csv", True),
        ("t/**/b.csv", "t/x/y/b.csv", True),
        ("t/**/b.csv", "t/xb.csv", False),
        ("t/**/b.csv", "t/x//b.csv", False),
        ("t/**b.csv", "t/x/yb.csv", True),
        ("t/*=en/*", "t/lang=en/a.csv", True),
        ("t/(a)+.csv", "t/(a)+.csv", True),
        ("t/*.csv", "t/a.csv.gz", False),
        ("t/ä*.csv", "t/äöü.csv", True),
    ],
)
def test_a_path_stands_for_these_keys(path: str, key: str, *, is_wanted: bool) -> None:
    assert fits(key, key_pattern(path)) is is_wanted


def test_wild_pieces_mean_what_the_same_regular_expression_means() -> None:
    written = {"*": "[^/]*", "**": ".*", "**/": "(?:[^/]+/)*", "?": "[^/]"}
    signs = ["".join(some) for size in range(5) for some in itertools.product("a/b", repeat=size)]
    for pieces in itertools.product(["a", "/", "*", "**", "**/", "?"], repeat=4):
        pattern = key_pattern("t" + "".join(pieces) + "b")
        usual = re.compile("".join(written.get(one, one) for one in pattern))
        for text in signs:
            key = f"t{text}b"
            assert fits(key, pattern) is bool(usual.fullmatch(key)), (pattern, key)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("*a" * 500 + "b", "a" * 1000),
        ("**/" * 300 + "b", "a/" * 500 + "c"),
        ("**a" * 300 + "b", "a" * 1000),
    ],
)
def test_no_path_takes_long(path: str, key: str) -> None:
    began = time.process_time()

    assert not fits(key, key_pattern(path))
    assert time.process_time() - began < 1
