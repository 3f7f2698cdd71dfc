"""What vLLM computes again when its KV cache is full, and whether it is counted: a real engine."""

from pathlib import Path
from typing import Any

import pytest

from cli.models.tiny import make_tiny_chat_model
from tests.engine.conftest import QUIET
from worker.engine_numbers import CoreMeter

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(600),
    # vLLM warns about itself.
    pytest.mark.filterwarnings("ignore"),
]

ROWS, PROMPT, ANSWER = 6, 100, 120
BLOCK, BLOCKS = 32, 24


def test_each_token_that_is_computed_again_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        **QUIET,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TORCH_COMPILE_DISABLE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    engine = _engine(tmp_path)
    meter, scheduled = _watched(engine)

    lengths = _run(engine)

    # All rows have their answers, which do not fit into the cache together.
    assert lengths == [ANSWER] * ROWS
    assert ROWS * (PROMPT + ANSWER) > BLOCK * BLOCKS
    assert meter.numbers.preemptions > 0
    # The last token of an answer is not computed on.
    once = ROWS * (PROMPT + ANSWER - 1)
    assert meter.numbers.recomputed_tokens == sum(scheduled) - once > 0
    assert meter.numbers.computed_tokens == sum(scheduled) + ROWS


def _engine(folder: Path) -> Any:
    """One whose cache has room for half of the rows."""
    from vllm import EngineArgs, LLMEngine

    arguments = EngineArgs(
        model=str(make_tiny_chat_model(folder / "tiny")),
        max_model_len=512,
        max_num_seqs=ROWS,
        block_size=BLOCK,
        num_gpu_blocks_override=BLOCKS,
        enforce_eager=True,
        dtype="float32",
        enable_prefix_caching=True,
    )
    return LLMEngine.from_engine_args(arguments)


def _watched(engine: Any) -> tuple[CoreMeter, list[int]]:
    """A meter that hears what the core says, and the tokens of each step as it is made up."""
    meter, scheduled = CoreMeter(), list[int]()
    core = engine.engine_core
    get_output, schedule = core.get_output, core.engine_core.scheduler.schedule

    def noted_output() -> Any:
        outputs = get_output()
        meter.note(outputs.scheduler_stats, outputs.outputs)
        return outputs

    def noted_step(*arguments: Any) -> Any:
        step = schedule(*arguments)
        scheduled.append(step.total_num_scheduled_tokens)
        return step

    core.get_output, core.engine_core.scheduler.schedule = noted_output, noted_step
    return meter, scheduled


def _run(engine: Any) -> list[int]:
    """The lengths of the answers of all rows, which begin differently."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=ANSWER, ignore_eos=True, temperature=0)
    for row in range(ROWS):
        prompt = [5 + (row * 7 + at * 3) % 200 for at in range(PROMPT)]
        engine.add_request(f"row{row}", {"prompt_token_ids": prompt}, params)
    lengths = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            lengths[output.request_id] = len(output.outputs[0].token_ids)
    return list(lengths.values())
