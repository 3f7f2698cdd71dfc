"""A model that could not be imported before ADR 53, in a real engine, beside transformers."""

import base64
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from shared.catalog import Catalog, Lane
from tests.answers import answers
from tests.engine.conftest import a_ray
from tests.engine.tiny_llava import make_tiny_llava

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(600),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

#: The weights mean nothing, so the next token may be nearly another one: there are few.
_TOKENS = 4
_SIZES = ((64, 40), (30, 90))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llava(tmp_path_factory.mktemp("models") / "llava")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[str]:
    from worker.engine_deployment import ensure_engine

    model = {
        "source": str(folder),
        "pools": ["cpu"],
        "engine": {"max_model_len": 512, "max_num_seqs": 8, "enforce_eager": True,
                   "dtype": "float32"},
        "env": {"VLLM_CPU_KVCACHE_SPACE": 1, "TORCH_COMPILE_DISABLE": 1},
    }  # fmt: skip
    pools = {"cpu": {"resources": {"CPU": 1}}}
    catalog = Catalog.model_validate({"pools": pools, "models": {"llava": model}})
    with a_ray(4):
        yield ensure_engine(catalog, Lane("llava", "cpu"))


async def test_pictures_are_answered_as_transformers_answers_them(
    engine: str, folder: Path
) -> None:
    from worker.engine_client import EngineClient

    dice = random.Random(1)
    pictures = [
        Image.frombytes("RGB", size, dice.randbytes(3 * size[0] * size[1])) for size in _SIZES
    ]

    found = await answers(EngineClient(engine), [_line(one) for one in pictures])

    assert [status for status, _ in found] == [200, 200]
    texts = [json.loads(body)["choices"][0]["message"]["content"] for _, body in found]
    assert texts == _as_transformers(folder, pictures)
    assert texts[0] != texts[1]


def _line(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "It is"}]
    body = {
        "model": "llava",
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": _TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    request = {"custom_id": "row", "url": "/v1/chat/completions", "body": body}
    return json.dumps(request).encode()


def _as_transformers(folder: Path, pictures: list[Image.Image]) -> list[str]:
    import torch
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    processor: Any = AutoProcessor.from_pretrained(folder)
    model: Any = LlavaForConditionalGeneration.from_pretrained(folder).eval()
    found = []
    for picture in pictures:
        given = processor(text="[IMG]It is", images=[picture], return_tensors="pt")
        with torch.no_grad():
            written = model.generate(
                **given, max_new_tokens=_TOKENS, min_new_tokens=_TOKENS, do_sample=False
            )
        tokens = written[0, given["input_ids"].shape[1] :]
        found.append(processor.tokenizer.decode(tokens, skip_special_tokens=True))
    return found
