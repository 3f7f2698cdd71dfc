from shared.ordering.pace import Done, Pace
from worker.pace_meter import PaceMeter

KIND = "/v1/chat/completions 4"
SEATS = 100


class Lane:
    """A lane second by second."""

    def __init__(self, known: Pace | None = None) -> None:
        self.meter = PaceMeter(seats=SEATS)
        self.known = known or Pace()
        self.now, self.rows = 1000.0, 7000

    def pass_(
        self, seconds: int, *, rows: int = 0, claimed: int = SEATS, runs: bool = True
    ) -> None:
        """Let seconds pass, at whose end so many rows have results."""
        for second in range(seconds):
            self.now += 1
            self.rows += rows if second == seconds - 1 else 0
            done = {KIND: Done(self.rows, 400 * self.rows, 200 * self.rows)}
            self.meter.measure(
                done, self.now, rows_claimed=claimed, is_running=runs, known=self.known
            )

    @property
    def rows_per_second(self) -> float:
        whole = self.meter.pace.whole
        return whole.rows / whole.seconds if whole else 0.0


def _lane() -> Lane:
    lane = Lane()
    lane.pass_(1)
    return lane


def test_between_commits_the_rate_stays_what_it_was() -> None:
    lane = _lane()
    lane.pass_(10, rows=270)
    assert lane.rows_per_second == 27

    lane.pass_(15)

    assert lane.rows_per_second == 27


def test_an_idle_minute_does_not_count() -> None:
    lane = _lane()
    lane.pass_(10, rows=270)

    lane.pass_(60, claimed=0)
    lane.pass_(10, rows=270)

    assert round(lane.rows_per_second, 6) == 27


def test_the_start_of_an_engine_does_not_count() -> None:
    lane = _lane()

    lane.pass_(120, runs=False)
    lane.pass_(10, rows=270)

    assert lane.rows_per_second == 27


def test_a_few_rows_alone_do_not_make_a_slow_engine() -> None:
    """Four rows that take ten seconds leave 96 of 100 seats free all the time."""
    lane = _lane()

    lane.pass_(10, rows=4, claimed=4)

    assert round(lane.rows_per_second, 6) == 10


def test_a_new_job_begins_with_what_the_one_before_learned() -> None:
    before = _lane()
    before.pass_(10, rows=270)

    after = Lane(known=before.meter.pace)
    after.pass_(1)

    assert after.rows_per_second == 27
