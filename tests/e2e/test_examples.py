"""The programs of examples/ run, as users run them, on the demo's models and with few rows."""

import csv
import io
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import httpx
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cli.fleet.catalog import EMBED_MODEL
from cli.models.minilm import minilm_path
from cli.servers import free_port
from cli.servers.http import is_well
from tests.e2e.conftest import RunningFleet
from tests.eventually import wait_until
from tests.examples import environment_of_users, run_python
from tests.shown import assert_shown

_EXAMPLES = Path(__file__).parents[2] / "examples"
#: A machine that computes other things may take minutes for a few rows.
_SECONDS = 600


class Examples:
    """Runs them in a folder against the fleet."""

    def __init__(self, fleet: RunningFleet, folder: Path) -> None:
        self.fleet = fleet
        self.folder = folder

    def run(self, *arguments: str | Path) -> str:
        """What a program prints."""
        return run_python(
            *arguments,
            environment=self.fleet.environment,
            folder=self.folder,
            timeout=_SECONDS,
        )

    @contextmanager
    def service(self) -> Iterator[str]:
        """The HTTP service's address."""
        port = free_port()
        command = ["-m", "uvicorn", "--app-dir", "service", "--port", str(port), "service:app"]
        process = subprocess.Popen(
            [sys.executable, "-W", "error", *command],
            env=environment_of_users(self.fleet.environment),
            cwd=_EXAMPLES,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: is_well(f"{url}/waiting"))
            yield url
        finally:
            process.terminate()
            # It waits for what it has asked, and then ends by the signal.
            assert process.wait(_SECONDS) == -signal.SIGTERM


@pytest.fixture
def examples(warm_chat: RunningFleet, warm_embeddings: RunningFleet, tmp_path: Path) -> Examples:
    assert warm_chat is warm_embeddings
    return Examples(warm_chat, tmp_path)


def test_common_questions_are_answered_by_one_command(examples: Examples) -> None:
    folder = _EXAMPLES / "questions"
    template = folder / "answer.yaml"

    printed = examples.run(
        "-m", "cli", "run", folder / "questions.csv", "--template", template, "--table"
    )

    rows = list(csv.DictReader(io.StringIO(printed)))
    with (folder / "questions.csv").open() as file:
        assert [row["question"] for row in rows] == [
            row["question"] for row in csv.DictReader(file)
        ]
    head = printed.partition("\n")[0]
    # An answer may have several lines.
    lines = [head, *(f"{row['custom_id']},{row['question']},{row['answer']}" for row in rows)]
    assert_shown(
        folder / "README.md", lines, texts=[r"^(q\d+,[^,]*,)[^\0]*"], progress="questions.csv: "
    )
    assert len(rows) == 20
    assert all(row["answer"] and not row["error"] for row in rows)


def test_many_users_are_answered_in_few_batches(examples: Examples) -> None:
    with examples.service() as url:
        printed = examples.run(_EXAMPLES / "service/crowd.py", url, "60")
        refused = httpx.post(f"{url}/questions", json={"user": "a", "text": "x" * 4000}, timeout=60)

    made = [
        batch.request_counts.total
        for batch in examples.fleet.client.batches.list(limit=20)
        if (batch.metadata or {}).get("service") and batch.request_counts
    ]
    assert_shown(_EXAMPLES / "service/README.md", printed.splitlines())
    assert "60 users have an answer" in printed
    assert (refused.status_code, "context length" in refused.text) == (400, True)
    assert sum(made) == 61
    assert len(made) <= 10


def test_posts_become_typed_columns_and_a_picture(examples: Examples) -> None:
    printed = examples.run(_EXAMPLES / "sentiment/sentiment.py", examples.folder, "60")

    judged = pl.read_parquet(examples.folder / "sentiment.parquet")
    picture = ET.parse(examples.folder / "sentiment.svg")  # noqa: S314  # we have written it
    bars = picture.findall("{http://www.w3.org/2000/svg}rect")
    # Which verdicts there are, and so how many columns, depends on the weights.
    assert_shown(
        _EXAMPLES / "sentiment/README.md",
        printed.splitlines(),
        texts=[r"^([┌╞└]).*", r"^(│ [^┆]*┆).*"],
        progress="batch_",
    )
    assert judged["id"].to_list() == [f"post-{number}" for number in range(60)]
    # Which of them random weights choose, nobody knows; a row without a verdict would have None.
    assert set(judged["sentiment"]) <= {"positive", "neutral", "negative"}
    assert judged.schema["defect"] == pl.Boolean
    assert len(bars) == 3 * judged["product"].n_unique()


def test_pictures_are_described(fleet: RunningFleet, tmp_path: Path) -> None:
    examples, program = Examples(fleet, tmp_path), _EXAMPLES / "images/images.py"
    (tmp_path / "own").mkdir()
    Image.new("RGB", (3, 3)).save(tmp_path / "own/pixel.png")
    (tmp_path / "own/notes.txt").write_text("no picture")

    printed = examples.run(program)
    drawn, own = (dict(_described(one)) for one in (printed, examples.run(program, "own")))

    assert len(drawn) == 48
    assert "red circle on green" in drawn
    assert own.keys() == {"pixel"}
    assert all(drawn.values())
    # What the model says depends on what it sees.
    assert len({*drawn.values(), *own.values()}) > 40


def _described(printed: str) -> Iterator[tuple[str, str]]:
    """The name of each picture, and what is said of it, which may have several lines."""
    for picture in re.split(r"^(?=[a-z ]+\.png )", printed, flags=re.MULTILINE)[1:]:
        name, _, text = picture.partition(".png")
        yield name, text.strip()


def test_documents_are_found_by_their_token_ids(examples: Examples) -> None:
    tokenizer = minilm_path() / "tokenizer.json"
    program = _EXAMPLES / "documents/documents.py"

    printed = examples.run(program, examples.folder, "40", "--tokenizer", tokenizer)

    found = pq.read_table(examples.folder / "embedded")
    text = found["text"][7].as_py()
    [asked] = examples.fleet.client.embeddings.create(model=EMBED_MODEL, input=text).data
    # The engine makes the same of the ids as of the text.
    assert np.allclose(found["embedding"][7].as_py(), asked.embedding, atol=1e-4)
    # Among fewer documents others are the nearest ones.
    texts = [r"^(  \d\.\d\d  \d{4}: ).*"]
    assert_shown(_EXAMPLES / "documents/README.md", printed.splitlines(), texts=texts)
    assert "40 documents in 1 shards" in printed
    assert ", 0 documents failed" in printed
    assert len(re.findall(r"^  0\.\d\d  \d{4}: ", printed, re.MULTILINE)) == 9


def test_a_text_becomes_named_clusters_and_answers(examples: Examples) -> None:
    program, text = _EXAMPLES / "retrieval/retrieval.py", _EXAMPLES / "retrieval/handbook.md"

    printed = examples.run(program, text, examples.folder, "May", "my", "dog", "come", "along?")

    index = pl.read_parquet(examples.folder / "index.parquet")
    # The names of the clusters, and the answer in the last line, are of random weights.
    texts = [r"^( +\d+ chunks of [^:]*: ).*", r"^()(?! +\d|May|from ).+"]
    assert_shown(_EXAMPLES / "retrieval/README.md", printed.splitlines(), texts=texts)
    assert index["section"].n_unique() == 12
    assert index.group_by("cluster").agg(pl.col("name").n_unique())["name"].to_list() == [1] * 6
    assert re.search(r"^May my dog come along\?\nfrom .*Dogs", printed, re.MULTILINE)
