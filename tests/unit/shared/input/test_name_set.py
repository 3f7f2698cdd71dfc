import random

import pytest

from shared.input.name_set import NameSet


@pytest.mark.parametrize("few", [0, 1, 2, 1000])
def test_a_name_is_new_once(few: int) -> None:
    seen = NameSet(max_plain=few)

    assert [True, True, False, True, False] == [seen.add(name) for name in ("a", "b", "a", "", "")]
    assert 3 == len(seen)


def test_long_names_are_told_apart_at_their_ends() -> None:
    seen = NameSet()

    assert seen.add("x" * 10_000 + "a")
    assert seen.add("x" * 10_000 + "b")
    assert not seen.add("x" * 10_000 + "a")


def test_becoming_a_table_and_growing_forget_nothing() -> None:
    seen = NameSet(max_plain=1000)
    # A table that grows has 2**18 slots, of which two thirds are taken.
    names = [f"row-{number}" for number in range(180_000)]

    assert all(seen.add(name) for name in names)

    assert not any(seen.add(name) for name in names)
    assert 180_000 == len(seen)


@pytest.mark.parametrize("few", [0, 50, 10**6])
def test_many_names_at_once_are_as_one_after_the_other(few: int) -> None:
    dice = random.Random(2)
    one, all_at_once = NameSet(max_plain=few), NameSet(max_plain=few)

    for _ in range(40):
        names = [str(dice.randrange(150)) * dice.choice((1, 1, 1, 40)) for _ in range(5)]
        assert [one.add(name) for name in names] == all_at_once.add_all(names)

    assert len(one) == len(all_at_once) > 50


@pytest.mark.parametrize("few", [0, 5000, 10**6])
def test_it_agrees_with_a_set(few: int) -> None:
    dice = random.Random(1)
    seen, known = NameSet(max_plain=few), set[str]()

    for _ in range(20_000):
        name = str(dice.randrange(10_000))
        assert seen.add(name) == (name not in known)
        known.add(name)

    assert len(known) == len(seen)


@pytest.mark.parametrize("bits", [0, 2**63 - 1])
def test_names_that_share_a_slot_and_half_of_their_bits_are_told_apart(bits: int) -> None:
    class Clash(str):
        """A name whose own hash is always the same; salted, it is a plain string."""

        __slots__ = ()

        def __hash__(self) -> int:
            return bits

    seen = NameSet(max_plain=0)

    assert all(seen.add(Clash(number)) for number in range(50))
    assert not any(seen.add(Clash(number)) for number in range(50))
