"""vLLM's own encoder and decoder at both ends; a class of this file stands for its core client."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason, UtilityOutput
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder, UtilityResult

from worker.passed_vectors import PassingEncoder, Vector, pass_vectors

#: One below, and one above the size at which vLLM sends a tensor in a frame of its own.
SIZES = [8, 384]


def step(ids: list[str], size: int) -> tuple[EngineCoreOutputs, list[bytearray]]:
    """What a core says of a step, and its frames; torch warns of those that are read-only."""
    outputs = EngineCoreOutputs(
        outputs=[
            EngineCoreOutput(
                id_, [], pooling_output=torch.rand(size), finish_reason=FinishReason.STOP
            )
            for id_ in ids
        ]
    )
    return outputs, sent_by(MsgpackEncoder(), outputs)


def sent_by(encoder: Any, outputs: Any) -> list[bytearray]:
    return [bytearray(frame) for frame in encoder.encode(outputs)]


def decoder(passed: set[str]) -> Any:
    """That of a core client whose sequences with these ids are passed on."""
    core = SimpleNamespace(decoder=MsgpackDecoder(EngineCoreOutputs))
    pass_vectors(core, passed.__contains__)
    return core.decoder


@pytest.mark.parametrize("size", SIZES)
def test_a_front_has_the_vectors_of_its_rows_as_the_core_sent_them(size: int) -> None:
    sent, frames = step(["a", "b", "c"], size)
    outputs = decoder({"a", "b", "c"}).decode(frames)
    outputs.outputs = [one for one in outputs.outputs if one.request_id != "b"]

    theirs = MsgpackDecoder(EngineCoreOutputs).decode(sent_by(PassingEncoder(), outputs))

    assert theirs.timestamp == sent.timestamp
    assert [one.request_id for one in theirs.outputs] == ["a", "c"]
    for one, original in zip(theirs.outputs, (sent.outputs[0], sent.outputs[2]), strict=True):
        assert one.finish_reason is FinishReason.STOP
        assert torch.equal(one.pooling_output, original.pooling_output)


def test_a_vector_that_is_passed_on_is_never_a_tensor() -> None:
    _, frames = step(["a"], 384)

    (output,) = decoder({"a"}).decode(frames).outputs

    assert isinstance(output.pooling_output, Vector)


def test_the_replicas_own_sequences_have_their_tensors() -> None:
    sent, frames = step(["a", "live"], 384)

    outputs = decoder({"a"}).decode(frames).outputs

    for one, original in zip(outputs, sent.outputs, strict=True):
        assert torch.equal(one.pooling_output, original.pooling_output)


def test_answers_to_the_replicas_own_questions_are_vllms() -> None:
    answer = EngineCoreOutputs(utility_output=UtilityOutput(7, result=UtilityResult(["embed"])))
    frames = MsgpackEncoder().encode(answer)

    found = decoder(set()).decode(frames)

    assert isinstance(found, EngineCoreOutputs)
    result = found.utility_output and found.utility_output.result
    assert result is not None
    assert result.result == ["embed"]
