"""vLLM's own loading of media, as our replicas have it: data alone, and within limits."""

import base64
import io
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from shared.openai.media import MediaLimits, MediaRules, media_refusal
from worker.media_connector import register_media_connector
from worker.row_rules import MEDIA_CONNECTOR

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(600),
    # vLLM warns about itself.
    pytest.mark.filterwarnings("ignore"),
]

_LIMITS = MediaLimits(pixels=1_000_000, frames=100, seconds=10)


@pytest.fixture(scope="module")
def connector() -> Any:
    """What vLLM loads media with in a replica, with the operator's most careless arguments."""
    from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY

    register_media_connector(_LIMITS)
    return MEDIA_CONNECTOR_REGISTRY.load(MEDIA_CONNECTOR, allowed_local_media_path="/")


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """A server on this machine, and the paths that it was asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
async def test_the_engine_calls_no_url_and_opens_no_file(
    connector: Any, asked: tuple[str, list[str]], tmp_path: Path, kind: str
) -> None:
    from vllm.exceptions import VLLMValidationError

    server, paths = asked
    (tmp_path / "a.png").write_bytes(_image(10, 10))
    fetch = getattr(connector, f"fetch_{kind}_async")
    for url in (f"{server}/a.png", f"file://{tmp_path}/a.png", "s3://bucket/key", "HTTP://a/"):
        with pytest.raises(VLLMValidationError, match="`data:` URLs only"):
            await fetch(url)
        with pytest.raises(VLLMValidationError, match="`data:` URLs only"):
            getattr(connector, f"fetch_{kind}")(url)

    assert paths == []


async def test_an_image_in_a_request_is_loaded(connector: Any) -> None:
    found = await connector.fetch_image_async(_url(_image(30, 20)))

    assert found.size == (30, 20)


async def test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded(
    connector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import ImageFile

    # As `rules_environment` sets it for replicas.
    monkeypatch.setenv("VLLM_MAX_IMAGE_PIXELS", str(_LIMITS.pixels))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it was decoded"))
    # Many times as large in memory as in the request.
    bomb = _image(10_000, 10_000)
    assert len(bomb) < 200_000

    with pytest.raises(ValueError, match="1000000 pixels"):
        await connector.fetch_image_async(_url(bomb))


@pytest.mark.parametrize(
    ("frames", "seconds", "words"), [(101, 1.0, "101 frames"), (100, 11.0, "11 seconds")]
)
async def test_a_video_is_judged_by_what_it_says_of_itself(
    connector: Any, frames: int, seconds: float, words: str
) -> None:
    """With each of vLLM's ways to sample frames, which all of its decoders ask."""
    from vllm.exceptions import VLLMValidationError
    from vllm.multimodal.media import ImageMediaIO, VideoMediaIO
    from vllm.multimodal.video_decoders.base import VideoSourceMetadata

    media_io = VideoMediaIO(ImageMediaIO())
    # It is no video, and machines without a GPU have no decoder.
    with pytest.raises((ImportError, ValueError)):
        await connector.load_from_url_async(_url(b"none"), media_io)

    prepare = media_io.video_loader._prepare_source  # noqa: SLF001  # the decoders call it
    good = VideoSourceMetadata(total_frames_num=100, original_fps=10.0, duration=10.0)
    assert prepare(good) == good
    with pytest.raises(VLLMValidationError, match=words):
        prepare(VideoSourceMetadata(frames, 10.0, seconds))


def test_every_kind_of_part_that_vllm_reads_is_known() -> None:
    from vllm.entrypoints.chat_utils import MM_PARSER_MAP

    texts = {"text", "thinking", "input_text", "output_text", "refusal", "tool_reference"}
    media = {"image_url", "input_image", "audio_url", "input_audio", "video_url"}
    own = {"image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil"}
    assert MM_PARSER_MAP.keys() == texts | media | own

    for kind in media:
        name = "image_url" if kind == "input_image" else kind
        part = {"type": kind, name: {"url": "http://127.0.0.1/", "data": "AAAA", "format": "wav"}}
        body = {"messages": [{"role": "user", "content": [part]}]}
        assert media_refusal(body, MediaRules(limits=MediaLimits(items=0))) is not None
    for kind in own:
        body = {"messages": [{"role": "user", "content": [{"type": kind, kind: "AAAA"}]}]}
        assert media_refusal(body, MediaRules()) is not None


def test_nothing_but_the_loader_of_media_calls_out_for_a_request() -> None:
    """Who else uses vLLM's HTTP client, or makes a loader of its own, has to be looked at."""
    import vllm

    root = Path(vllm.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "global_http_connection" in (text := path.read_text()) or " MediaConnector(" in text
    }

    assert found == {
        "connections.py",
        "multimodal/media/connector.py",
        # Without a server: files of examples, `vllm run-batch`, and helpers for callers' own code.
        "assets/base.py",
        "entrypoints/launchers/run_batch.py",
        "multimodal/utils.py",
    }


def _image(width: int, height: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


def _url(file: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def test_no_tenant_finds_what_was_computed_of_anothers_media() -> None:
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    from worker.engine_core import set_salt

    image = MultiModalFeatureSpec(
        data=None,
        modality="image",
        identifier="digest of the image",
        mm_position=PlaceholderRange(offset=0, length=4),
    )
    requests = [
        EngineCoreRequest(
            request_id=str(number),
            prompt_token_ids=[1],
            mm_features=[image],
            sampling_params=SamplingParams(),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        for number in range(4)
    ]

    for request, salt in zip(requests, ("acme", "acme", "other", ""), strict=True):
        set_salt(request, salt)

    names = [request.mm_features[0].identifier for request in requests if request.mm_features]
    assert names[0] == names[1] != names[2]
    assert names[3] == image.identifier == "digest of the image"
