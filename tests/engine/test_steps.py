"""What vLLM computes in each of its steps, beside live calls and of vectors, on a real engine."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.models.tiny import make_tiny_chat_model
from tests.engine.conftest import QUIET
from tests.times import Time
from worker.live_control import QUIET_SECONDS
from worker.step_limit import StepLimit, headers

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(600),
    # vLLM warns about itself.
    pytest.mark.filterwarnings("ignore"),
]

LIMIT, STEP = 64, 512
#: As the engine's queue gives them out.
LIVE_RANK = -(2 << 40)


class Engine:
    """vLLM's, of which each step is noted."""

    def __init__(
        self, model: Path, scheduler: str, *, is_async: bool = False, is_pooling: bool = False
    ) -> None:
        from vllm import EngineArgs, LLMEngine, PoolingParams, SamplingParams

        arguments = EngineArgs(
            model=str(model),
            runner="pooling" if is_pooling else "generate",
            max_model_len=1024,
            max_num_seqs=16,
            max_num_batched_tokens=STEP,
            scheduling_policy="priority",
            scheduler_cls=scheduler,
            async_scheduling=is_async,
            enforce_eager=True,
            dtype="float32",
            enable_prefix_caching=True,
        )
        self._engine = LLMEngine.from_engine_args(arguments)
        self._params = SamplingParams
        self._pooling = PoolingParams(task="embed")
        core: Any = self._engine.engine_core
        self.scheduler = core.engine_core.scheduler
        #: Of each step: the tokens by sequence, as vLLM's scheduler has decided.
        self.steps: list[dict[str, int]] = []
        #: The answers so far.
        self.answers: dict[str, list[int]] = {}
        schedule = self.scheduler.schedule

        def noted(*args: Any) -> Any:
            output = schedule(*args)
            self.steps.append(dict(output.num_scheduled_tokens))
            return output

        self.scheduler.schedule = noted

    def add(
        self, name: str, prompt: list[int], tokens: int, *, rank: int = 1, is_live: bool = False
    ) -> None:
        params = self._params(max_tokens=tokens, ignore_eos=True, temperature=0)
        self._engine.add_request(
            name,
            {"prompt_token_ids": prompt},
            params,
            priority=rank,
            trace_headers=headers(LIMIT, is_live=is_live),
        )

    def add_vector(self, name: str, prompt: list[int], *, rank: int = 1) -> None:
        self._engine.add_request(name, {"prompt_token_ids": prompt}, self._pooling, priority=rank)

    def step(self) -> dict[str, int]:
        """The tokens of the next step, by name."""
        before = len(self.steps)
        made: list[Any] = self._engine.step()
        for output in made:
            if isinstance(output.outputs, list):
                self.answers[output.request_id] = list(output.outputs[0].token_ids)
        found: dict[str, int] = {}
        for step in self.steps[before:]:
            # vLLM appends something of its own to each name.
            found |= {name.split("-")[0]: tokens for name, tokens in step.items()}
        return found

    def run(self) -> list[dict[str, int]]:
        """All steps until nothing is left."""
        steps = []
        while self._engine.has_unfinished_requests():
            steps.append(self.step())
        return steps


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_chat_model(folder)
    return folder


@pytest.fixture(scope="module")
def settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            **QUIET,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "TORCH_COMPILE_DISABLE": "1",
        }.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module", params=[False, True], ids=["waiting", "async"])
def engine(model: Path, settings: None, request: pytest.FixtureRequest) -> Engine:
    """With each of the two schedulers. On a processor vLLM itself plans no step ahead."""
    from worker.step_scheduler import scheduler_name

    return Engine(model, scheduler_name(is_async=request.param), is_async=request.param)


def prompt(number: int, tokens: int) -> list[int]:
    """No two begin alike."""
    return [5 + (number * 7 + at * 3) % 200 for at in range(tokens)]


def of_batches(step: dict[str, int]) -> int:
    """The tokens of prompts of batches: a token of an answer is one."""
    return sum(tokens for name, tokens in step.items() if name != "live" and tokens > 1)


def test_beside_a_live_call_a_step_has_no_more_of_batches_than_the_limit(engine: Engine) -> None:
    engine.add("live", prompt(99, 300), 60, rank=LIVE_RANK, is_live=True)
    for number in range(6):
        engine.add(f"row{number}", prompt(number, 200), 4, rank=number + 1)

    first, *others = engine.run()

    # The live call has its whole prompt in one step, and batches something besides.
    assert first["live"] == 300
    assert 0 < of_batches(first) <= LIMIT
    beside = [step for step in others if "live" in step]
    assert max(map(of_batches, beside)) == LIMIT
    assert sum(map(of_batches, [first, *others])) >= 6 * 200 - 6
    # No step was without a token of the live call, as long as it ran.
    assert len(beside) == 59
    assert {name: len(tokens) for name, tokens in engine.answers.items()} == {
        "live": 60,
        **{f"row{number}": 4 for number in range(6)},
    }


def test_batches_that_were_there_before_hold_up_no_live_call(engine: Engine) -> None:
    _be_quiet(engine)
    for number in range(6):
        engine.add(f"row{number}", prompt(10 + number, 400), 4, rank=number + 1)
    assert of_batches(engine.step()) == STEP

    engine.add("live", prompt(98, 100), 3, rank=LIVE_RANK, is_live=True)
    step = engine.step()

    assert step["live"] == 100
    assert of_batches(step) == LIMIT
    engine.run()


def test_without_live_calls_steps_are_full(engine: Engine) -> None:
    _be_quiet(engine)
    for number in range(6):
        engine.add(f"row{number}", prompt(20 + number, 400), 4, rank=number + 1)

    steps = engine.run()

    assert [of_batches(step) for step in steps[:4]] >= [STEP - 6] * 4
    # Lower ranks first.
    assert steps[0] == {"row0": 400, "row1": 112}


def test_answers_are_the_same_however_prompts_are_split(engine: Engine) -> None:
    _be_quiet(engine)
    rows = {f"row{number}": prompt(30 + number, 150) for number in range(4)}
    for name, tokens in rows.items():
        engine.add(name, tokens, 8)
    engine.run()
    whole = {name: engine.answers[name] for name in rows}

    assert engine._engine.reset_prefix_cache()  # noqa: SLF001  # so that all is computed again
    engine.add("live", prompt(97, 10), 30, rank=LIVE_RANK, is_live=True)
    for name, tokens in rows.items():
        engine.add(name, tokens, 8)
    engine.run()

    assert {name: engine.answers[name] for name in rows} == whole


def test_what_the_cache_has_costs_nothing_of_the_limit(engine: Engine) -> None:
    engine.add("live", prompt(96, 10), 30, rank=LIVE_RANK, is_live=True)
    for number in range(4):
        engine.add(f"row{number}", [*prompt(30, 144), 7, 7, 7 + number], 2)

    steps = engine.run()

    assert sum(steps[0].get(f"row{number}", 0) for number in range(4)) <= LIMIT
    assert all(f"row{number}" in steps[0] for number in range(4))


def _be_quiet(engine: Engine) -> None:
    """As if the last live call were long ago."""
    engine.scheduler._limit._live_at -= QUIET_SECONDS  # noqa: SLF001  # a test waits for nothing


def test_a_step_of_vectors_has_what_takes_a_short_while_and_small_batches_go_first(
    model: Path, settings: None
) -> None:
    from worker.step_scheduler import scheduler_name

    engine = Engine(model, scheduler_name(is_async=False), is_pooling=True)
    clock = Time()
    engine.scheduler._limit = StepLimit(clock, is_one_step=True)  # noqa: SLF001  # for its clock
    schedule = engine.scheduler.schedule

    def slow(*args: Any) -> Any:
        output = schedule(*args)
        clock.now += output.total_num_scheduled_tokens / 6_000
        return output

    engine.scheduler.schedule = slow
    for number in range(40):
        engine.add_vector(f"row{number}", prompt(number, 40), rank=number + 1)
    first, second = engine.step(), engine.step()
    for number in range(5):
        engine.add_vector(f"small{number}", prompt(50 + number, 40), rank=number - 1000)
    third, fourth, *others = engine.run()

    # 512 tokens are all that vLLM itself allows, and 300 take 0.05 s.
    assert sum(first.values()) == STEP
    assert sum(second.values()) == 300
    assert set(third) == {f"small{number}" for number in range(5)}
    assert sum(fourth.values()) == 300
    assert all(sum(step.values()) <= 300 for step in others)
    assert sum(sum(step.values()) for step in [first, second, third, fourth, *others]) == 45 * 40


def test_others_wait_some_steps_while_a_small_batch_is_answered(engine: Engine) -> None:
    from worker.ranks import FIRST

    engine.add("giant", prompt(1, 40), 40)
    undisturbed = len(engine.run())
    alone = engine.answers["giant"]
    engine.add("giant", prompt(1, 40), 40)
    engine.step()
    engine.add("small", prompt(2, 40), 20, rank=1 - FIRST)
    engine.add("next", prompt(3, 40), 2)

    steps = engine.run()

    # Their prompts wait twelve steps, and the answers that were begun before wait sixteen.
    assert steps[0] == {"small": 40}
    assert next(number for number, step in enumerate(steps) if "next" in step) == 12
    assert next(number for number, step in enumerate(steps) if "giant" in step) == 16
    assert len(steps) == undisturbed - 1 + 16
    assert len(engine.answers["next"]) == 2
    assert engine.answers["giant"] == alone


def test_threads_of_the_core_wait_for_no_whole_step(model: Path, settings: None) -> None:
    from worker.step_scheduler import scheduler_name

    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    try:
        Engine(model, scheduler_name(is_async=False))
        assert sys.getswitchinterval() < 0.001
    finally:
        sys.setswitchinterval(before)
