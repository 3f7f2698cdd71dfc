"""`batchyard up` as a person runs it: its output, what it leaves behind, what it refuses."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from openai import BadRequestError, OpenAI

from cli.models.tiny import make_tiny_chat_model
from cli.servers.process import RUN_DIR_VARIABLE
from tests.e2e.conftest import WARM_SECONDS, chat_lines, until
from tests.servers import S3
from tests.shell import sourced


@contextmanager
def up(run_dir: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The command, with the variables that it wrote once it was ready; interrupted afterwards."""
    written = run_dir.with_suffix(".env")
    written.unlink(missing_ok=True)
    process = subprocess.Popen(
        [*_command(run_dir), "--write-env", str(written), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: written.exists() or process.poll() is not None, WARM_SECONDS)
        assert process.poll() is None, process.communicate()[0]
        yield process, sourced(written)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=90)


@pytest.fixture
def own_servers(
    amqp_url: str, redis_url: str, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Arguments that name servers which run already."""
    monkeypatch.setenv("BATCHYARD_S3_ACCESS_KEY", s3.access_key)
    monkeypatch.setenv("BATCHYARD_S3_SECRET_KEY", s3.secret_key)
    return ["--amqp-url", amqp_url, "--redis-url", redis_url, "--s3-endpoint", s3.endpoint]


def test_an_interrupt_stops_everything_and_the_data_survive(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    with up(run_dir) as (first, environment):
        client = OpenAI(
            base_url=environment["OPENAI_BASE_URL"], api_key=environment["OPENAI_API_KEY"]
        )
        file = client.files.create(file=("in.jsonl", chat_lines(1)), purpose="batch")
        first.send_signal(signal.SIGINT)
        said = first.communicate(timeout=90)[0]
    left = _processes_of(run_dir)
    with up(run_dir) as (_, again):
        client = OpenAI(base_url=again["OPENAI_BASE_URL"], api_key=again["OPENAI_API_KEY"])
        kept = client.files.content(file.id).read()
        refused = httpx.get(f"{again['OPENAI_BASE_URL']}/files", timeout=10)
    bystander_lived = bystander.poll() is None
    bystander.kill()
    bystander.wait()

    assert first.returncode == 130
    assert left == []
    assert bystander_lived
    assert environment == again
    assert chat_lines(1) == kept
    assert refused.status_code == 401
    assert {"OPENAI_BASE_URL", "OPENAI_API_KEY", "BATCHYARD_AMQP_URL"} < set(environment)
    assert environment["CHAT_MODEL"]
    assert environment["EMBED_MODEL"]
    for name in ("rabbitmq", "redis", "ray", "dispatcher", "gateway"):
        assert f"process    {name}" in said


def test_servers_models_and_settings_of_ones_own_are_used(
    tmp_path: Path, own_servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHYARD_MAX_METADATA_PAIRS", "1")
    # What the fleet sets itself may not be overridden.
    monkeypatch.setenv("BATCHYARD_REDIS_URL", "redis://nowhere.invalid/0")
    monkeypatch.setenv("BATCHYARD_PORT", "1")
    model = make_tiny_chat_model(tmp_path / "my-model")

    with up(tmp_path / "run", *own_servers, "--model", str(model)) as (_, environment):
        client = OpenAI(
            base_url=environment["OPENAI_BASE_URL"], api_key=environment["OPENAI_API_KEY"]
        )
        names = [found.id for found in client.models.list()]
        file = client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        until(lambda: client.batches.retrieve(batch.id).status == "failed")
        with pytest.raises(BadRequestError, match="metadata"):
            client.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={"one": "1", "two": "2"},
            )
        started = {name.partition(" ")[2] for name in _processes_of(tmp_path / "run")}

    assert "my-model" in names
    assert not started & {"beam.smp", "redis-server", "radosgw", "ceph-mon"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--model", "./no-such-folder"], "there is no such folder"),
        (["--catalog", "no-such-file.yaml"], "no-such-file.yaml"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs_on(
    tmp_path: Path, arguments: list[str], reason: str
) -> None:
    run_dir = tmp_path / "run"

    ended = subprocess.run(
        [*_command(run_dir), *arguments], capture_output=True, text=True, timeout=120, check=False
    )

    assert ended.returncode == 2
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr
    assert _processes_of(run_dir) == []


def test_a_wrong_engine_argument_stops_the_start_with_its_line(
    tmp_path: Path, own_servers: list[str]
) -> None:
    catalog = tmp_path / "catalog.yaml"
    catalog.write_text(
        "pools: {local: {resources: {CPU: 1}}}\n"
        "models:\n"
        "  m:\n"
        "    source: somewhere\n"
        "    pools: [local]\n"
        "    engine:\n"
        "      max_model_length: 1024\n"
    )

    ended = subprocess.run(
        [*_command(tmp_path / "run"), "--catalog", str(catalog), *own_servers],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"},
    )

    assert ended.returncode == 2
    assert "Retrying" not in ended.stderr
    assert "max_model_length" in ended.stderr
    assert "line 7" in ended.stderr or ":7" in ended.stderr
    assert "max_model_len" in ended.stderr


def _command(run_dir: Path) -> list[str]:
    return [sys.executable, "-m", "cli", "up", "--run-dir", str(run_dir)]


def _processes_of(run_dir: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(RUN_DIR_VARIABLE, "")
            if marked.startswith(str(run_dir)) and process.pid != os.getpid():
                found.append(f"{process.pid} {process.name()}")
        except psutil.Error:
            continue
    return found
