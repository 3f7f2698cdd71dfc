import json
from pathlib import Path
from typing import Any

import pytest

from gateway.model_files import ModelFiles, max_model_len
from shared.catalog import Model


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        (100, 100),
        ("2k", 2000),
        ("2K", 2048),
        ("300", 300),
        (-1, 4096),
        ("auto", 4096),
        (True, 4096),
    ],
)
def test_the_catalog_s_own_length_goes_first(
    configured: object, expected: int, tmp_path: Path
) -> None:
    _write(tmp_path, "config.json", {"max_position_embeddings": 4096})

    assert expected == max_model_len(_model(tmp_path, max_model_len=configured))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "seq_length": 1024}, 1024),
        ({"text_config": {"n_positions": 512}}, 512),
        ({"max_position_embeddings": 4096, "rope_scaling": None}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "llama3"}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": 4}}, None),
        ({"max_position_embeddings": 4096, "rope_scaling": 7}, None),
        ({"max_position_embeddings": "many"}, None),
        ({}, None),
        ([], None),
    ],
)
def test_else_the_model_s_configuration_says_it_or_nobody(
    config: object, expected: int | None, tmp_path: Path
) -> None:
    _write(tmp_path, "config.json", config)

    assert expected == max_model_len(_model(tmp_path))


def test_an_embedding_model_is_as_long_as_it_was_trained_for(tmp_path: Path) -> None:
    _write(tmp_path, "config.json", {"max_position_embeddings": 514})
    _write(tmp_path, "tokenizer_config.json", {"model_max_length": 512})

    assert 512 == max_model_len(_model(tmp_path, runner="pooling"))

    _write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 256})

    assert 256 == max_model_len(_model(tmp_path, runner="pooling"))


def test_a_file_is_found_in_hugging_face_s_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--acme--small"
    for commit in ("c0ffee", "decade"):
        _write(repository / "snapshots" / commit, "config.json", {"seq_len": len(commit)})
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")

    newest, pinned = ModelFiles("acme/small"), ModelFiles("acme/small", "decade")

    assert repository / "snapshots/c0ffee/config.json" == newest.find("config.json")
    assert repository / "snapshots/decade/config.json" == pinned.find("config.json")
    assert newest.find("tokenizer.json") is None
    assert ModelFiles("acme/other").find("config.json") is None


def test_a_broken_file_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff{")

    assert {} == ModelFiles(str(tmp_path)).read_json("config.json")


def _model(source: Path, **engine: Any) -> Model:
    return Model(name="m", source=str(source), pools=("p",), engine=engine)


def _write(folder: Path, name: str, value: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(value))
