"""Sounds that become text, in a real engine whose model has random weights."""

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shared.catalog import Catalog, Lane
from shared.catalog_file import load_catalog
from tests.answers import answers
from tests.engine.conftest import a_ray
from tests.engine.tiny_whisper import make_tiny_whisper

pytest.importorskip("vllm", reason="needs the worker's dependencies")
soundfile = pytest.importorskip("soundfile", reason="needs what reads sounds")

pytestmark = [
    pytest.mark.timeout(600),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

_RATE, _SECONDS = 16_000, 2
_TRANSCRIBE, _TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
_CATALOG = """\
pools: {cpu: {resources: {CPU: 1}}}
models:
  ears:
    source: ./ears
    pools: [cpu]
    media_limits: {seconds: 3}
    engine: {max_model_len: 448, max_num_seqs: 8, enforce_eager: true, dtype: float32}
    env: {VLLM_CPU_KVCACHE_SPACE: 1, TORCH_COMPILE_DISABLE: 1}
"""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    folder = tmp_path_factory.mktemp("models")
    make_tiny_whisper(folder / "ears")
    (folder / "catalog.yaml").write_text(_CATALOG)
    return load_catalog(folder / "catalog.yaml")


@pytest.fixture(scope="module")
def engine(catalog: Catalog) -> Iterator[str]:
    from worker.engine_deployment import ensure_engine

    with a_ray(4):
        yield ensure_engine(catalog, Lane("ears", "cpu"))


def _sound(seconds: float = _SECONDS, *, kind: str = "WAV") -> str:
    """Noise, as a `data:` URL."""
    file = io.BytesIO()
    noise = np.random.default_rng(1).normal(0, 0.1, int(_RATE * seconds))
    soundfile.write(file, noise, _RATE, format=kind)
    return f"data:audio/x;base64,{base64.b64encode(file.getvalue()).decode()}"


async def _ask(engine: str, *rows: tuple[str, dict[str, Any]]) -> list[tuple[int, Any]]:
    from worker.engine_client import EngineClient

    lines = [
        json.dumps(
            {
                "custom_id": "row",
                "url": path,
                "body": {"model": "ears", "max_completion_tokens": 12, **body},
            }
        ).encode()
        for path, body in rows
    ]
    found = await answers(EngineClient(engine), lines)
    return [(status, json.loads(body)) for status, body in found]


async def test_a_sound_becomes_text(engine: str, catalog: Catalog) -> None:
    sound = {"file_url": _sound(), "language": "en"}

    plain, flac, words, translated = await _ask(
        engine,
        (_TRANSCRIBE, sound),
        (_TRANSCRIBE, {**sound, "file_url": _sound(kind="FLAC")}),
        (_TRANSCRIBE, {**sound, "response_format": "verbose_json"}),
        (_TRANSLATE, sound),
    )

    assert catalog.models["ears"].endpoints == (_TRANSCRIBE, _TRANSLATE)
    assert plain[0] == 200
    assert plain[1]["text"]
    assert plain[1]["usage"] == {"type": "duration", "seconds": _SECONDS}
    assert flac == plain
    assert (words[0], words[1]["language"], words[1]["duration"]) == (200, "en", _SECONDS)
    assert (translated[0], translated[1].keys()) == (200, {"text"})


async def test_what_is_no_sound_costs_its_own_row(engine: str) -> None:
    good = {"file_url": _sound(), "language": "en"}
    wrong = (
        {"file_url": "data:audio/wav;base64,AAAA"},
        {"file_url": "data:audio/wav;base64,?"},
        {"file_url": "data:audio/wav,x"},
        {"file_url": "http://127.0.0.1:9/a.wav"},
        {"file_url": "file:///etc/hostname"},
        {"file_url": _sound(4)},
        {"language": "xx"},
        {"stream": True},
        {"use_beam_search": True},
        {"file_url": None},
    )

    first, *rest = await _ask(
        engine, (_TRANSCRIBE, good), *((_TRANSCRIBE, {**good, **one}) for one in wrong)
    )

    assert first[0] == 200
    assert [status for status, _ in rest] == [400] * len(wrong)
    messages = [body["error"]["message"] for _, body in rest]
    assert "no base64" in messages[1]
    assert all("`data:` URL" in message for message in messages[2:5])
    assert "3s" in messages[5]
