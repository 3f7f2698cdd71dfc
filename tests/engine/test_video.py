"""Videos in requests, in a real engine whose model sees and has random weights."""

import base64
import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shared.catalog import Catalog, Lane
from shared.catalog_file import load_catalog
from shared.input_places import InputPlaces
from shared.openai.media import MediaLimits, MediaRules
from shared.openai.row_rules import RowRules
from shared.outbound import Guard
from shared.storage import Storage
from tests.answers import answers
from tests.engine.conftest import a_ray
from tests.engine.tiny_viewer import FRAMES, MERGE, PATCH, make_tiny_viewer
from worker.engine_errors import Engine

pytest.importorskip("vllm", reason="needs the worker's dependencies")
av = pytest.importorskip("av", reason="needs what writes videos")

pytestmark = [
    pytest.mark.timeout(600),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

_CHAT = "/v1/chat/completions"
#: Of the videos: pixels each way, and frames.
_SIDE, _LENGTH, _PER_SECOND = 4 * PATCH, 8, 4
#: Frames of a second that are seen, by the sampling of this model's own video processor.
_SEEN = 2
_SECONDS = 3
_CATALOG = f"""\
pools: {{cpu: {{resources: {{CPU: 1}}}}}}
models:
  eyes:
    source: ./eyes
    pools: [cpu]
    media_limits: {{seconds: {_SECONDS}}}
    engine: {{max_model_len: 512, max_num_seqs: 8, enforce_eager: true, dtype: float32,
             limit_mm_per_prompt: {{image: 1, video: 1}}}}
    env: {{VLLM_CPU_KVCACHE_SPACE: 1, TORCH_COMPILE_DISABLE: 1}}
"""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    folder = tmp_path_factory.mktemp("models")
    make_tiny_viewer(folder / "eyes")
    (folder / "catalog.yaml").write_text(_CATALOG)
    return load_catalog(folder / "catalog.yaml")


@pytest.fixture(scope="module")
def engine(catalog: Catalog) -> Iterator[str]:
    from worker.engine_deployment import ensure_engine

    with a_ray(4):
        yield ensure_engine(catalog, Lane("eyes", "cpu"))


async def test_a_video_is_seen_from_its_row_and_from_s3_alike(
    engine: str, storage: Storage
) -> None:
    await storage.put("inbox/acme/first.mp4", _video(1))
    async with _with_media(engine, storage) as fetching:
        first, again, other, from_s3, elsewhere, without = await _ask(
            fetching,
            _data(_video(1)),
            _data(_video(1)),
            _data(_video(2)),
            f"s3://{storage.bucket}/inbox/acme/first.mp4",
            f"s3://{storage.bucket}/inbox/umbrella/first.mp4",
            None,
        )

    assert [status for status, _ in (first, again, other, from_s3)] == [200] * 4
    assert _said(first) == _said(again) == _said(from_s3) != _said(other)
    # A token for two by two patches of two frames, between two marks.
    seen = _LENGTH // _PER_SECOND * _SEEN // FRAMES
    assert _tokens(first) - _tokens(without) == (_SIDE // PATCH // MERGE) ** 2 * seen + 2
    assert elsewhere[0] == 400
    assert "s3://" in elsewhere[1]["error"]["message"]


async def test_frames_as_jpegs_are_a_video(engine: str) -> None:
    from worker.engine_client import EngineClient

    frames = ",".join(base64.b64encode(_jpeg(one)).decode() for one in _frames(1))

    [(status, body)] = await _ask(EngineClient(engine), f"data:video/jpeg;base64,{frames}")

    assert status == 200, body
    assert body["choices"][0]["message"]["content"]


async def test_what_is_no_video_or_too_long_costs_its_own_row(engine: str) -> None:
    from worker.engine_client import EngineClient

    long = _video(1, length=(_SECONDS + 1) * _PER_SECOND)
    good, *wrong = await _ask(
        EngineClient(engine),
        _data(_video(1)),
        _data(b"no video"),
        _data(_video(1)[:200]),
        _data(long),
        "data:video/mp4;base64,?",
        "data:video/mp4;base64,",
        "data:video/jpeg;base64,AAAA",
    )

    assert good[0] == 200
    assert [status for status, _ in wrong] == [400] * len(wrong), wrong
    assert "4 seconds long" in wrong[2][1]["error"]["message"]


def _frames(seed: int, length: int = _LENGTH) -> Iterator[Any]:
    """A pattern of colours that moves to the right."""
    cells = np.random.default_rng(seed).integers(0, 255, (7, 7, 3), dtype=np.uint8)
    pixels = np.ones((_SIDE // 7, _SIDE // 7, 1), dtype=np.uint8)
    return (np.kron(np.roll(cells, number, axis=1), pixels) for number in range(length))


def _video(seed: int, length: int = _LENGTH) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=_PER_SECOND)
        stream.width = stream.height = _SIDE
        stream.pix_fmt = "yuv420p"
        for frame in _frames(seed, length):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def _jpeg(frame: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "JPEG")
    return file.getvalue()


def _data(video: bytes) -> str:
    return f"data:video/mp4;base64,{base64.b64encode(video).decode()}"


@asynccontextmanager
async def _with_media(engine: str, storage: Storage) -> AsyncIterator[Engine]:
    """The engine behind what a lane job fetches media with."""
    from shared.media_fetcher import MediaFetcher
    from worker.engine_client import EngineClient
    from worker.media_engine import MediaEngine

    guard = Guard(())
    fetcher = MediaFetcher(lambda: storage, guard, timeout_seconds=60)
    rules = RowRules(media=MediaRules(limits=MediaLimits()))
    places = InputPlaces(storage.bucket, "inbox/{tenant}/", {})
    yield MediaEngine(EngineClient(engine), fetcher, rules, places)
    guard.close()


async def _ask(engine: Engine, *urls: str | None) -> list[tuple[int, Any]]:
    """Status and body of a request about each video, and of one about none."""
    found = await answers(engine, [_line(url) for url in urls])
    return [(status, json.loads(body)) for status, body in found]


def _line(url: str | None) -> bytes:
    video = [] if url is None else [{"type": "video_url", "video_url": {"url": url}}]
    body = {
        "model": "eyes",
        "messages": [{"role": "user", "content": [*video, {"type": "text", "text": "It is"}]}],
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
    }
    return json.dumps({"custom_id": "row", "url": _CHAT, "body": body}).encode()


def _said(result: tuple[int, Any]) -> str:
    return str(result[1]["choices"][0]["message"]["content"])


def _tokens(result: tuple[int, Any]) -> int:
    return int(result[1]["usage"]["prompt_tokens"])
