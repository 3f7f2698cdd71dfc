from shared.ordering.prefix_cache import PrefixCache


def test_only_an_unbroken_beginning_counts() -> None:
    cache = PrefixCache(9)
    cache.add((1, 2, 3))

    assert cache.match((1, 2, 4, 3)) == 2
    assert cache.match((4, 2, 3)) == 0


def test_a_cache_forgets_its_oldest_blocks() -> None:
    cache = PrefixCache(3)
    cache.add((1, 2))
    cache.add((3, 4))

    assert (cache.match((3, 4)), cache.match((1, 2))) == (2, 1)


def test_what_is_used_again_stays() -> None:
    cache = PrefixCache(2)
    cache.add((1,))
    cache.add((2,))
    cache.add((1,))
    cache.add((3,))

    assert (cache.match((1,)), cache.match((2,))) == (1, 0)
