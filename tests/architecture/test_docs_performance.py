"""docs/performance.md against `benchmarks/results-gpu.json` and that of several cards."""

from benchmarks.gpu.report import PAGE, RESULTS_OF_CARDS, kept, page


def test_the_page_is_what_the_kept_results_say() -> None:
    assert page(kept(), kept(RESULTS_OF_CARDS)) == PAGE.read_text(), "run make docs"
