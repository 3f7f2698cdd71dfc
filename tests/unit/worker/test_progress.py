from worker.progress import Progress


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _watched() -> tuple[Progress, _Clock]:
    clock = _Clock()
    return Progress(10, clock), clock


def test_an_engine_with_rows_that_gives_nothing_for_the_time_has_stalled() -> None:
    progress, clock = _watched()

    seen = []
    for _ in range(12):
        clock.now += 1
        seen.append(progress.has_stalled(3))

    assert seen == [False] * 10 + [True] * 2


def test_a_token_of_any_row_is_progress_however_long_all_of_them_take() -> None:
    progress, clock = _watched()

    for second in range(1000):
        clock.now += 1
        if second % 9 == 0:
            progress.note()

        assert not progress.has_stalled(256)


def test_an_engine_without_rows_never_stalls_and_begins_anew_with_the_next() -> None:
    progress, clock = _watched()
    for _ in range(100):
        clock.now += 1
        assert not progress.has_stalled(0)

    clock.now += 9
    assert not progress.has_stalled(1)
    assert not progress.has_stalled(1)


def test_after_a_pause_of_the_whole_process_the_engines_answers_come_first() -> None:
    progress, clock = _watched()
    clock.now += 500

    assert not progress.has_stalled(1)
    progress.note()
    assert not progress.has_stalled(1)
