"""Vectors on their way through the replica, from vLLM's core to a front: they stay bytes.

The replica shares out what the core says of a step, and needs nothing of the vectors in it. To make
tensors of them and bytes again took a sixth of its time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.serial_utils import CUSTOM_TYPE_RAW_VIEW, MsgpackDecoder, MsgpackEncoder


class Vector:
    """A tensor as vLLM sends it."""

    __slots__ = ("buffer", "dtype", "shape")

    def __init__(self, dtype: str, shape: list[int], buffer: memoryview) -> None:
        self.dtype, self.shape, self.buffer = dtype, shape, buffer


class PassingEncoder(MsgpackEncoder):
    """Writes outputs as vLLM's own encoder does, and vectors as they came."""

    def enc_hook(self, obj: Any) -> Any:
        if not isinstance(obj, Vector):
            return super().enc_hook(obj)
        if obj.buffer.nbytes < self.size_threshold:
            return obj.dtype, obj.shape, msgspec.msgpack.Ext(CUSTOM_TYPE_RAW_VIEW, obj.buffer)
        assert self.aux_buffers is not None  # noqa: S101  # it is encoding
        self.aux_buffers.append(obj.buffer)
        return obj.dtype, obj.shape, len(self.aux_buffers) - 1


class _PassingDecoder(MsgpackDecoder):
    def dec_hook(self, t: type, obj: Any) -> Any:
        if t is not Vector:
            return super().dec_hook(t, obj)
        dtype, shape, data = obj
        buffer: Any = self.aux_buffers[data] if isinstance(data, int) else data
        return Vector(dtype, shape, memoryview(buffer))


def pass_vectors(core: Any, is_passed: Callable[[str], bool]) -> None:
    """Let this core client make no tensors in outputs of which all sequences are passed on."""
    whole, passing = core.decoder.decode, _PassingDecoder(_passed_outputs())

    def decode(frames: Sequence[Any]) -> Any:
        outputs = passing.decode(frames)
        if outputs.utility_output is None and all(
            is_passed(one.request_id) for one in outputs.outputs
        ):
            return outputs
        return whole(frames)

    core.decoder.decode = decode


def _passed_outputs() -> type[msgspec.Struct]:
    """The outputs of vLLM with vectors that stay bytes."""
    output = _changed(EngineCoreOutput, pooling_output=Vector | None)
    return _changed(EngineCoreOutputs, outputs=list[output])  # type: ignore[valid-type]


def _changed(struct: type[msgspec.Struct], **types: Any) -> type[msgspec.Struct]:
    """The same fields in the same order, some of them of another type."""
    fields = [
        (one.name, types.get(one.name, one.type), _default(one))
        for one in msgspec.structs.fields(struct)
    ]
    return msgspec.defstruct(struct.__name__, fields, array_like=True, omit_defaults=True, gc=False)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return field.default
