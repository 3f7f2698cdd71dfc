"""docs/performance.md against `benchmarks/results-gpu.json`."""

from benchmarks.gpu.report import PAGE, kept, page


def test_the_page_is_what_the_kept_results_say() -> None:
    assert page(kept()) == PAGE.read_text(), "run make docs"
