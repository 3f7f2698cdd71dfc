"""What measures is run too, in small: it calls what nobody else calls that way."""

import pytest

from benchmarks.index_growth import index_growth


@pytest.mark.usefixtures("redis_url")
def test_the_index_is_measured() -> None:
    figures = index_growth(many=1_100, times=1)

    assert len(figures) == 7
    assert all(figure.value > 0 and figure.baseline for figure in figures)
