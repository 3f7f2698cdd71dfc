"""docs/performance.md against the kept results of cards."""

from benchmarks.gpu.report import PAGE, RESULTS_OF_ANOTHER, RESULTS_OF_CARDS, kept, page


def test_the_page_is_what_the_kept_results_say() -> None:
    made = page(kept(), kept(RESULTS_OF_CARDS), kept(RESULTS_OF_ANOTHER))
    assert made == PAGE.read_text(), "run make docs"
