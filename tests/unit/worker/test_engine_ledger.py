"""Whose an engine's seconds are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from worker.engine_ledger import Computed, EngineLedger, TokenWeights


def test_a_row_alone_has_all_of_the_engines_busy_time() -> None:
    ledger = EngineLedger(TokenWeights(), 0.0)

    ledger.enter("row", "s", 10.0)
    ledger.step([Computed("s", 100, 1)], 10.5)
    ledger.step([Computed("s", 0, 1)], 10.6)
    ledger.leave("s", 10.6)
    seconds = ledger.settle("row", 20.0)

    assert seconds == pytest.approx(0.6)
    assert ledger.uses(20.0) == pytest.approx((0.6, 0, 0, 19.4))


def test_rows_share_what_they_were_in_together_by_their_tokens() -> None:
    ledger = EngineLedger(TokenWeights(), 0.0)
    ledger.enter("long", "a", 0.0)
    ledger.enter("short", "b", 0.0)

    for step in range(10):
        ledger.step([Computed("a", 0, 3), Computed("b", 0, 1)], 0.1 * (step + 1))
    shares = [ledger.settle("long", 1.0), ledger.settle("short", 1.0)]

    assert shares == pytest.approx([0.75, 0.25])


def test_a_row_that_ends_within_a_period_takes_its_share_and_leaves_the_others_theirs() -> None:
    ledger = EngineLedger(TokenWeights(), 0.0)
    ledger.enter("first", "a", 0.0)
    ledger.enter("second", "b", 0.0)

    ledger.step([Computed("a", 0, 1), Computed("b", 0, 1)], 0.2)
    ledger.leave("a", 0.2)
    first = ledger.settle("first", 0.2)
    ledger.step([Computed("b", 0, 1)], 0.6)
    ledger.leave("b", 0.6)

    assert (first, ledger.settle("second", 0.6)) == pytest.approx((0.1, 0.5))


def test_a_long_prompt_pays_for_the_steps_before_its_first_token() -> None:
    ledger = EngineLedger(TokenWeights(), 0.0)
    ledger.enter("prompt", "a", 0.0)

    for step in range(5):
        ledger.step([], 1.0 * step)
    ledger.step([Computed("a", 50_000, 1)], 5.0)

    assert ledger.settle("prompt", 5.0) == pytest.approx(5.0)


def test_several_sequences_of_a_row_are_one_account() -> None:
    ledger = EngineLedger(TokenWeights(), 0.0)
    ledger.enter("row", "a", 0.0)
    ledger.enter("row", "b", 0.0)

    ledger.step([Computed("a", 0, 1), Computed("b", 0, 1)], 1.0)

    assert ledger.settle("row", 1.0) == pytest.approx(1.0)


def test_what_has_no_result_is_lost_and_what_is_of_no_batch_is_live() -> None:
    ledger = EngineLedger(TokenWeights(), 0.0)
    ledger.enter("row", "a", 0.0)
    ledger.enter(None, "b", 0.0)

    ledger.step([Computed("a", 0, 1), Computed("b", 0, 3)], 2.0)
    ledger.forget("row", 2.0)
    ledger.leave("b", 2.0)

    assert ledger.uses(3.0) == pytest.approx((0, 0.5, 1.5, 1.0))


def test_rows_that_never_had_a_token_are_lost_too() -> None:
    ledger = EngineLedger(TokenWeights(), 0.0)
    ledger.enter("row", "a", 0.0)

    ledger.forget("row", 3.0)

    assert ledger.uses(4.0) == pytest.approx((0, 3, 0, 1))


@pytest.mark.parametrize("ratio", [0.02, 0.25, 2.0])
def test_the_weight_of_a_prompts_token_is_what_periods_have_shown(ratio: float) -> None:
    weights = TokenWeights()

    for number in range(50):
        prompt, answer = 1000 * (number % 7), 500 + 100 * (number % 3)
        weights.learn(prompt, answer, 0.001 * (ratio * prompt + answer))

    assert weights.prompt == pytest.approx(ratio, rel=0.01)


def test_periods_of_one_mixture_teach_nothing() -> None:
    weights = TokenWeights()
    before = weights.prompt

    for _ in range(50):
        weights.learn(1000, 100, 1.0)

    assert weights.prompt == before


class Engine(RuleBasedStateMachine):
    """Rows come and go at any moment, and all seconds are somebody's."""

    @initialize(start=st.floats(0, 1000))
    def begin(self, start: float) -> None:
        self.start = self.now = start
        self.ledger = EngineLedger(TokenWeights(), start)
        self.inside: dict[str, int | None] = {}
        self.known: set[int] = set()
        self.number = 0
        self.settled = 0.0

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(of_a_batch=st.booleans(), joins=st.booleans())
    def enter(self, of_a_batch: bool, joins: bool) -> None:
        self.number += 1
        row = None
        if of_a_batch:
            row = max(self.known) if joins and self.known else self.number
            self.known.add(row)
        self.inside[f"s{self.number}"] = row
        self.ledger.enter(row, f"s{self.number}", self.now)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        some = data.draw(st.sets(st.sampled_from(sorted(self.inside))))
        tokens = st.integers(0, 5000)
        computed = [Computed(one, data.draw(tokens), data.draw(tokens)) for one in sorted(some)]
        self.ledger.step(computed, self.now)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(sorted(self.inside)))
        del self.inside[one]
        self.ledger.leave(one, self.now)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), has_result=st.booleans())
    def end(self, data: st.DataObject, has_result: bool) -> None:
        row = data.draw(st.sampled_from(sorted(self.known)))
        if has_result:
            self.settled += self.ledger.settle(row, self.now)
        self.ledger.forget(row, self.now)
        self.known.discard(row)
        self.inside = {one: owner for one, owner in self.inside.items() if owner != row}

    @invariant()
    def all_seconds_are_somebodys(self) -> None:
        uses = self.ledger.uses(self.now)

        assert uses.total == pytest.approx(self.now - self.start, abs=1e-6)
        assert min(uses) >= -1e-9
        if not self.known and not self.inside:
            assert uses.rows == pytest.approx(self.settled, abs=1e-6)


TestEngine = Engine.TestCase
TestEngine.settings = settings(max_examples=8, stateful_step_count=15)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 500)), min_size=1))
def test_a_weight_is_a_whole_number_that_no_token_makes_smaller(
    steps: list[tuple[int, int]],
) -> None:
    weights = TokenWeights()

    for prompt, answer in steps:
        assert weights.weigh(prompt, answer) >= 1000 * answer
        weights.learn(prompt, answer, 0.01)
        assert 0.001 <= weights.prompt <= 10
