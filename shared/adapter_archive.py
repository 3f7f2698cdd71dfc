"""The file that an adapter comes in: a tar archive of two files, read without unpacking it.

Nothing in it is executed, and none of its names becomes a path: `Adapter.write` makes the
only two files that vLLM reads.
"""

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shared.errors import InvalidInputError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
#: What tools write beside them. It is left out.
_IGNORED = frozenset({"README.md"})
_BLOCK = 512
#: Kinds of entries. Extended headers may say other names and lengths, and nobody listens to them.
_PLAIN, _FOLDER, _EXTENSIONS = (b"0", b"\0"), b"5", (b"x", b"g")
_MAX_MEMBERS = 16
_MAX_CONFIG_BYTES = 64 * 1024
#: In front of the header of safetensors, its length.
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 4 * 1024 * 1024
_MAX_TENSORS = 20_000
_MAX_TARGETS = 256
#: Bytes of a number of each type that weights may have.
_NUMBERS = {"F32": 4, "F16": 2, "BF16": 2}
#: What vLLM is told of an adapter.
_TAKEN = ("r", "lora_alpha", "target_modules", "use_rslora")
#: What says nothing about the weights.
_TOLD = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "bias",
        "exclude_modules",
        "fan_in_fan_out",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_dropout",
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "revision",
        "task_type",
    }
)

#: Reads bytes [start, end) of the file.
Read = Callable[[int, int], Awaitable[bytes]]


class AdapterLimits(NamedTuple):
    """The most that an adapter may be."""

    bytes: int
    rank: int


class Adapter(NamedTuple):
    """An adapter that has been looked at: vLLM's configuration, and where its weights are."""

    config: Mapping[str, Any]
    start: int
    end: int

    def write(self, archive: bytes, folder: Path) -> None:
        """Write the two files into the folder, which exists."""
        (folder / CONFIG).write_text(json.dumps(self.config), encoding="utf-8")
        (folder / WEIGHTS).write_bytes(memoryview(archive)[self.start : self.end])


class BadAdapterError(InvalidInputError):
    """The file is no adapter that may be used; the message says why."""


async def read_adapter(read: Read, size: int, limits: AdapterLimits) -> Adapter:
    """Look at a file of this size, of which only headers are read. Raises BadAdapterError."""
    if size > limits.bytes:
        raise _bad(f"it has {size} bytes, and at most {limits.bytes} are allowed")
    members = await _members(read, size)
    for name in (CONFIG, WEIGHTS):
        if name not in members:
            raise _bad(f"it lacks {name}")
    start, end = members[CONFIG]
    if end - start > _MAX_CONFIG_BYTES:
        raise _bad(f"{CONFIG} has more than {_MAX_CONFIG_BYTES} bytes")
    config = _config(await read(start, end), limits)
    start, end = members[WEIGHTS]
    await _check_weights(read, start, end, rank=config["r"])
    return Adapter(config, start, end)


async def adapter_in(archive: bytes, limits: AdapterLimits) -> Adapter:
    """The same of a file at hand."""

    async def read(start: int, end: int) -> bytes:
        return archive[start:end]

    return await read_adapter(read, len(archive), limits)


async def _members(read: Read, size: int) -> dict[str, tuple[int, int]]:
    """Where each file of the archive begins and ends."""
    found: dict[str, tuple[int, int]] = {}
    at = 0
    for _ in range(_MAX_MEMBERS):
        header = await read(at, at + _BLOCK)
        if not header.strip(b"\0"):
            return found
        name, kind, length = _header(header)
        start, at = at + _BLOCK, at + _BLOCK + math.ceil(length / _BLOCK) * _BLOCK
        if start + length > size:
            raise _bad("it is cut off")
        if (wanted := _wanted(name, kind)) is None:
            continue
        if wanted in found:
            raise _bad(f"it has {wanted} twice")
        found[wanted] = start, start + length
    raise _bad(f"it has more than {_MAX_MEMBERS} files")


def _wanted(name: str, kind: bytes) -> str | None:
    """Which of the two files the entry is; None for one that is left out."""
    if kind in _EXTENSIONS:
        return None
    if kind == _FOLDER:
        if name.strip("./"):
            raise _bad("it has folders: put the files at its top")
        return None
    if kind not in _PLAIN:
        raise _bad("it has something that is no plain file: write it with `tar --format=ustar`")
    name = name.removeprefix("./")
    if name in _IGNORED:
        return None
    if name not in (CONFIG, WEIGHTS):
        raise _bad(f"it may have {CONFIG} and {WEIGHTS} and nothing else")
    return name


def _header(block: bytes) -> tuple[str, bytes, int]:
    """Name, kind and length of a file in the archive."""
    try:
        stated = int(block[148:156].strip(b"\0 "), 8)
        length = int(block[124:136].strip(b"\0 "), 8)
        name = block[:100].rstrip(b"\0").decode("ascii")
    except ValueError:
        raise _no_archive() from None
    checked = sum(block[:148]) + sum(b" " * 8) + sum(block[156:])
    if len(block) < _BLOCK or stated != checked or length < 0 or block[345:500].strip(b"\0"):
        raise _no_archive()
    return name, block[156:157], length


def _config(text: bytes, limits: AdapterLimits) -> dict[str, Any]:
    """What vLLM is told, of what the configuration says."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or given.get("peft_type") != "LORA":
        raise _bad(f"{CONFIG} is not that of a LoRA adapter")
    for name, value in given.items():
        if name == "bias" and value != "none":
            raise _bad(f"{CONFIG}: `bias` is something else than none")
        # What a later version adds changes nothing as long as it is off.
        if name not in _TAKEN and name not in _TOLD and value:
            raise _bad(f"{CONFIG}: `{name[:64]}` is not supported")
    rank: Any = given.get("r")
    alpha: Any = given.get("lora_alpha")
    if not _is_number(rank, int) or not 1 <= rank <= limits.rank:
        raise _bad(f"{CONFIG}: `r` is not from 1 to {limits.rank}, this model's limit")
    if not _is_number(alpha, int | float) or not 0 < alpha < math.inf:
        raise _bad(f"{CONFIG}: `lora_alpha` is no number above 0")
    targets: Any = given.get("target_modules")
    is_list = isinstance(targets, list) and 0 < len(targets) <= _MAX_TARGETS
    if not is_list or not all(isinstance(one, str) and len(one) < _BLOCK for one in targets):
        raise _bad(f"{CONFIG}: `target_modules` is no list of names")
    scaled = given.get("use_rslora", False)
    if not isinstance(scaled, bool):
        raise _bad(f"{CONFIG}: `use_rslora` is neither true nor false")
    values = (rank, alpha, targets, scaled)
    return {"peft_type": "LORA", "bias": "none", **dict(zip(_TAKEN, values, strict=True))}


async def _check_weights(read: Read, start: int, end: int, *, rank: int) -> None:
    """Raise unless this part of the file is safetensors with LoRA's tensors, and they fit."""
    begin = start + _LENGTH_BYTES
    length = int.from_bytes(await read(start, min(begin, end)), "little")
    if not 0 < length <= min(_MAX_HEADER_BYTES, end - begin):
        raise _bad(f"{WEIGHTS} is not in the safetensors format")
    try:
        header = json.loads(await read(begin, begin + length))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise _bad(f"{WEIGHTS} is not in the safetensors format")
    tensors = {name: value for name, value in header.items() if name != "__metadata__"}
    if not 0 < len(tensors) <= _MAX_TENSORS:
        raise _bad(f"{WEIGHTS} has no tensors, or more than {_MAX_TENSORS}")
    room = end - begin - length
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, rank=rank, room=room)


def _check_tensor(name: str, tensor: Any, *, rank: int, room: int) -> None:
    where = f"{WEIGHTS}: the tensor `{name[:128]}`"
    side = {".lora_A.weight": 0, ".lora_B.weight": 1}.get(name[-len(".lora_A.weight") :])
    if side is None:
        raise _bad(f"{where} is none of LoRA's, which end in .lora_A.weight or .lora_B.weight")
    try:
        shape, (start, end) = tensor["shape"], tensor["data_offsets"]
        of_number = _NUMBERS[tensor["dtype"]]
        lengths = [_count(one) for one in shape]
        size = of_number * math.prod(lengths)
        fits = 0 <= _count(start) <= _count(end) <= room and end - start == size
    except (KeyError, TypeError, ValueError):
        raise _bad(f"{where} has no shape, or numbers other than {', '.join(_NUMBERS)}") from None
    if len(lengths) != 2 or lengths[side] != rank:  # noqa: PLR2004  # a matrix
        raise _bad(f"{where} is no matrix of the rank {rank}")
    if not fits:
        raise _bad(f"{where} has not as many bytes as its shape")


def _count(value: Any) -> int:
    if not _is_number(value, int) or value < 0:
        raise ValueError(value)
    return int(value)


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _no_archive() -> BadAdapterError:
    return _bad("it is not a tar archive: write it with `tar --format=ustar`, uncompressed")


def _bad(reason: str) -> BadAdapterError:
    return BadAdapterError(f"The file is no adapter: {reason}.", param="file")
