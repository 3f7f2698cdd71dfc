"""What vLLM gets of its core's outputs in a front, and in which order."""

from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the worker's dependencies")

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.serial_utils import MsgpackEncoder

from worker.front_core import RemoteCore

FEW = 2


def a_core(at_a_time: int | None) -> RemoteCore:
    return RemoteCore(lambda _: None, ("embed",), at_a_time=at_a_time)


def frames(*ids: str) -> list[bytes]:
    outputs = EngineCoreOutputs(
        outputs=[EngineCoreOutput(request_id=id_, new_token_ids=[]) for id_ in ids], timestamp=7.0
    )
    encoded: Any = MsgpackEncoder().encode(outputs)
    return [bytes(frame) for frame in encoded]


async def ids_of(core: RemoteCore) -> list[str]:
    outputs = await core.get_output_async()
    assert outputs.timestamp == 7
    return [one.request_id for one in outputs.outputs]


async def test_vectors_come_a_few_at_a_time_and_what_is_first_before_those_that_wait() -> None:
    core = a_core(FEW)
    core.take(frames("a", "b", "c", "d", "e"))

    assert await ids_of(core) == ["a", "b"]
    core.take(frames("first"), is_first=True)
    assert [await ids_of(core) for _ in range(3)] == [["first"], ["c", "d"], ["e"]]


async def test_outputs_of_texts_come_whole_and_in_their_order() -> None:
    core = a_core(None)
    core.take(frames("a", "b", "c"))
    core.take(frames("a"), is_first=True)

    assert [await ids_of(core) for _ in range(2)] == [["a", "b", "c"], ["a"]]
