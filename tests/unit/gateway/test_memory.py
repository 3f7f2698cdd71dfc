import pytest

from gateway.memory import Memory
from shared.errors import LimitError


def test_a_tenant_has_no_more_than_it_leaves_free() -> None:
    memory = Memory(100, "more")

    with memory.taken("acme", 50):
        with pytest.raises(LimitError, match="no memory for more"), memory.taken("acme", 1):
            pass
        with memory.taken("globex", 50):
            pass


def test_what_is_given_back_early_is_there_for_others() -> None:
    memory = Memory(100, "more")

    with memory.taken("acme", 50) as taken:
        taken.keep(10)
        with memory.taken("acme", 80):
            pass
        with pytest.raises(LimitError), memory.taken("acme", 81):
            pass
    with memory.taken("acme", 50), memory.taken("globex", 50):
        pass


def test_one_that_is_alone_always_gets_it() -> None:
    memory = Memory(100, "more")

    with memory.taken("acme", 1000):
        pass
    with memory.taken("acme", 1000):
        pass
