import json
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shared.adapter_archive import CONFIG, WEIGHTS, AdapterLimits, BadAdapterError, adapter_in
from tests.adapters import PEFT_CONFIG, a_config, an_adapter, archive, weights

_LIMITS = AdapterLimits(bytes=1024 * 1024, rank=16)


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
async def test_an_adapter_as_peft_writes_it_is_taken(kind: int, tmp_path: Path) -> None:
    files = {"./README.md": b"# mine", f"./{CONFIG}": a_config(), f"./{WEIGHTS}": weights()}
    body = archive(files, kind=kind)

    adapter = await adapter_in(body, _LIMITS)
    adapter.write(body, tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {CONFIG, WEIGHTS}  # noqa: ASYNC240  # nothing else runs
    assert (tmp_path / WEIGHTS).read_bytes() == weights()
    assert json.loads((tmp_path / CONFIG).read_text()) == {
        "peft_type": "LORA",
        "bias": "none",
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["o_proj"],
        "use_rslora": False,
    }


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({CONFIG: a_config()}, f"lacks {WEIGHTS}"),
        ({WEIGHTS: weights()}, f"lacks {CONFIG}"),
        ({CONFIG: a_config(), WEIGHTS: weights(), "adapter_model.bin": b"x"}, "nothing else"),
        ({CONFIG: a_config(), f"../{WEIGHTS}": weights()}, "nothing else"),
        ({CONFIG: a_config(), f"/{WEIGHTS}": weights()}, "nothing else"),
        ({CONFIG: a_config(), f"mine/{WEIGHTS}": weights()}, "nothing else"),
        ({CONFIG: a_config(), f"./{CONFIG}": a_config()}, "twice"),
        ({CONFIG: b"{", WEIGHTS: weights()}, "not that of a LoRA"),
        ({CONFIG: b" " * 70_000, WEIGHTS: weights()}, "more than 65536 bytes"),
        ({CONFIG: a_config(), WEIGHTS: b"\x80\x04pickle"}, "not in the safetensors"),
        ({CONFIG: a_config(), WEIGHTS: struct.pack("<Q", 2**62)}, "not in the safetensors"),
        ({CONFIG: a_config(), WEIGHTS: weights()[:-1]}, "as many bytes"),
        ({CONFIG: a_config(), WEIGHTS: weights(name="lm_head.weight{}")}, "none of LoRA's"),
    ],
)
async def test_what_is_no_adapter_is_refused(files: Mapping[str, bytes], words: str) -> None:
    with pytest.raises(BadAdapterError, match=words):
        await adapter_in(archive(files), _LIMITS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, "not that of a LoRA"),
        ({"r": 32}, "`r` is not from 1 to 16"),
        ({"r": True}, "`r` is not"),
        ({"r": 4}, "no matrix of the rank 4"),
        ({"lora_alpha": "many"}, "lora_alpha"),
        ({"lora_alpha": float("inf")}, "lora_alpha"),
        ({"target_modules": "all-linear"}, "target_modules"),
        ({"bias": "all"}, "bias"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 64}}, "rank_pattern"),
        ({"use_rslora": 1}, "use_rslora"),
    ],
)
async def test_a_configuration_says_only_what_is_known(
    changes: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(BadAdapterError, match=words):
        await adapter_in(an_adapter(**changes), _LIMITS)


async def test_links_folders_and_other_archives_are_refused(tmp_path: Path) -> None:
    for kind, words in ((tarfile.SYMTYPE, "no plain file"), (tarfile.DIRTYPE, "has folders")):
        path = tmp_path / "a.tar"
        with tarfile.open(path, "w") as tar:
            entry = tarfile.TarInfo("mine")
            entry.type, entry.linkname = kind, "/etc/passwd"
            tar.addfile(entry)
        with pytest.raises(BadAdapterError, match=words):
            await adapter_in(path.read_bytes(), _LIMITS)
    for body in (b"PK\x03\x04" + b"x" * 600, b"\x1f\x8b" + b"x" * 600, an_adapter()[:700], b"x"):
        with pytest.raises(BadAdapterError, match=r"tar|cut off|lacks"):
            await adapter_in(body, _LIMITS)


async def test_a_large_one_is_refused_before_it_is_looked_at() -> None:
    with pytest.raises(BadAdapterError, match="at most 100"):
        await adapter_in(an_adapter(), AdapterLimits(bytes=100, rank=16))


async def test_every_cut_and_every_changed_byte_is_an_adapter_or_refused() -> None:
    whole = an_adapter()
    for at in range(0, len(whole), 97):
        for body in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :]):
            try:
                await adapter_in(body, _LIMITS)
            except BadAdapterError as error:
                assert len(str(error)) < 500  # noqa: PT017  # most of them raise it
    assert PEFT_CONFIG["r"] == 8
