"""compose.yaml as it stands, brought up in an engine, and what a test may do to it."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from openai import OpenAI
from openai.types import Batch
from testcontainers.compose import DockerCompose

from cli.credentials import write_env
from cli.models.minilm import minilm_path
from cli.models.tiny import make_tiny_chat_model
from cli.servers import free_port
from shared.state import State
from tests.containers import compose
from tests.eventually import wait_until
from tests.stack.engine import ContainerEngine, show

CHAT, EMBED = "tiny-chat", "all-MiniLM-L6-v2"
TENANT = "demo"
FINAL = ("completed", "failed", "expired", "cancelled")
#: What a cold engine may need on a machine with two cores that runs a whole fleet besides.
COLD_SECONDS = 1800.0
_START_SECONDS = 1200.0
_LABEL = "label=com.docker.compose"


class Stack(DockerCompose):
    """One project of Compose; `files` after the first one change it, `variables` its `.env`."""

    def __init__(
        self,
        engine: ContainerEngine,
        folder: Path,
        catalog: Mapping[str, Any],
        files: Sequence[Path] = (),
        **variables: str,
    ) -> None:
        super().__init__(context=compose.FILE.parent, wait=False)
        self.engine = engine
        self.project = f"stack{os.getpid()}"
        self._files = (compose.FILE, *files)
        self._env_file = folder / "stack.env"
        self._port, self._amqp_port = free_port(), free_port()
        (folder / "catalog.yaml").write_text(yaml.safe_dump(dict(catalog)))
        write_env(self._env_file)
        #: What the `.env` says.
        self.variables = dict(
            line.split("=", 1) for line in self._env_file.read_text().splitlines()
        )
        with self._env_file.open("a") as file:
            file.write(f"PORT={self._port}\nAMQP_PORT={self._amqp_port}\n")
            file.write(f"CATALOG={folder / 'catalog.yaml'}\n")
            file.writelines(f"{name}={value}\n" for name, value in variables.items())

    @cached_property
    def compose_command_property(self) -> list[str]:
        """Also where Compose is Debian's program and no plugin of the client."""
        files = [part for file in self._files for part in ("-f", str(file))]
        options = ["-p", self.project, *files, "--env-file", str(self._env_file)]
        return [*self.engine.compose, *options]

    def up(self, *options: str, **variables: str) -> None:
        """`docker compose up -d`, with these variables besides."""
        with _environment(self._host_variables() | variables):
            self._run_command([*self.compose_command_property, "up", "-d", *options])

    def down(self) -> None:
        """End it with its volumes; where `BATCHYARD_KEEP_LOGS` says so, its logs stay."""
        if keep := os.environ.get("BATCHYARD_KEEP_LOGS"):
            self.keep_logs(Path(keep) / self.project)
        with _environment(self._host_variables()):
            self.stop()

    def run_documented(self, commands: str, folder: Path) -> None:
        """Run a shell's commands in the folder; `docker compose` is this project there."""
        docker = folder / "bin" / "docker"
        docker.parent.mkdir(exist_ok=True)
        docker.write_text(
            '#!/bin/sh\nif [ "$1" = compose ]; then shift; '
            f'exec {shlex.join(self.compose_command_property)} "$@"; fi\n'
            f'exec {self.engine.client} "$@"\n'
        )
        docker.chmod(0o755)
        path = f"{docker.parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-exc", commands],
            cwd=folder,
            env={**os.environ, **self._host_variables(), "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]

    def run_in(self, service: str, *command: str) -> str:
        """The output of a command in the service's container."""
        return self.engine.ask("exec", self.container(service), *command)

    def container(self, service: str) -> str:
        """The id of the service's container, also of one that is down."""
        labels = (f"{_LABEL}.project={self.project}", f"{_LABEL}.service={service}")
        return self.engine.ask("ps", "-aq", *(f"--filter={label}" for label in labels))

    def containers(self) -> list[str]:
        return self.engine.ask("ps", "-aq", f"--filter={_LABEL}.project={self.project}").split()

    def look(self, container: str) -> dict[str, Any]:
        """What the engine knows of the container."""
        [found] = json.loads(self.engine.ask("inspect", container))
        return dict(found)

    def health(self, service: str) -> str:
        state = self.look(self.container(service))["State"]
        return str(state["Health"]["Status"]) if state["Running"] else "down"

    def wait_well(self, *services: str, seconds: float = COLD_SECONDS) -> None:
        """Return when the services are healthy; all of them where none is named."""
        began = time.monotonic()
        for service in services or self.services_named():
            wait_until(lambda: self.health(service) == "healthy", timeout=seconds)  # noqa: B023  # it is called before the next turn
        show(f"well: {' '.join(services) or 'all'} after {time.monotonic() - began:.0f} s")

    def services_named(self) -> list[str]:
        """The services of all files."""
        found = [compose.load(file.read_text())["services"] for file in self._files]
        return list(dict.fromkeys(name for services in found for name in services))

    def crash(self, service: str) -> None:
        """Kill the service's first process, as the kernel might, and see it started again."""
        container = self.container(service)
        before = self.look(container)["State"]
        if self.engine.is_ours:
            os.kill(before["Pid"], signal.SIGKILL)
        else:
            # A kill by the engine counts as an operator's, so it is not restarted.
            self.engine.run("kill", container)
            self.engine.run("start", container)
        wait_until(
            lambda: self.look(container)["State"]["StartedAt"] != before["StartedAt"],
            timeout=COLD_SECONDS,
        )

    @contextmanager
    def cut_off(self, service: str) -> Iterator[None]:
        """Cut the service off: nobody reaches it, and it reaches nobody."""
        network, container = f"{self.project}_default", self.container(service)
        self.engine.run("network", "disconnect", network, container)
        try:
            yield
        finally:
            self.engine.run("network", "connect", f"--alias={service}", network, container)

    def add_models(self) -> None:
        """Put the two models of the demo into the volume, where downloads would lie."""
        head = self.container("ray-head")
        tiny = make_tiny_chat_model(self.engine.folder / "models" / CHAT)
        for name, source in ((CHAT, tiny), (EMBED, minilm_path())):
            self.engine.run("cp", "--follow-link", str(source), f"{head}:/models/{name}")

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def amqp_url(self) -> str:
        """The tenant's."""
        return self.variables["DEMO_AMQP_URL"].replace(":5672", f":{self._amqp_port}")

    @cached_property
    def api_key(self) -> str:
        """A key of the tenant, made as the documents say."""
        made = self.run_in("gateway", "batchyard", "keys", "create", "--tenant", TENANT, "--json")
        return str(json.loads(made)["key"])

    @cached_property
    def client(self) -> OpenAI:
        # Calls to what is killed or cut off meanwhile are repeated.
        return OpenAI(base_url=self.base_url, api_key=self.api_key, max_retries=20)

    def client_environment(self) -> dict[str, str]:
        """What the documents' examples read."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "BATCHYARD_AMQP_URL": self.amqp_url,
            "CHAT_MODEL": CHAT,
            "EMBED_MODEL": EMBED,
        }

    def state(self) -> State:
        """Redis, by the containers' own network: it has no port here."""
        return State(self.redis_url())

    def redis_url(self) -> str:
        """The same for other clients."""
        url = self.variables["BATCHYARD_REDIS_URL"]
        return url.replace("@redis:", f"@{self.address('redis')}:")

    def address(self, service: str) -> str:
        """Where the service's container is in the containers' own network."""
        networks = self.look(self.container(service))["NetworkSettings"]["Networks"]
        [address] = [network["IPAddress"] for network in networks.values()]
        return str(address)

    def submit(self, lines: bytes, endpoint: str) -> Batch:
        """Upload the lines and create their batch."""
        file = self.client.files.create(file=("input.jsonl", lines), purpose="batch")
        return self.client.batches.create(
            input_file_id=file.id,
            endpoint=endpoint,  # type: ignore[arg-type]
            completion_window="24h",
        )

    def ended(self, batch: Batch, *, seconds: float = COLD_SECONDS) -> Batch:
        """The batch once it has ended."""
        self.until(batch, lambda now: now.status in FINAL, seconds=seconds)
        return self.client.batches.retrieve(batch.id)

    def until(
        self, batch: Batch, condition: Callable[[Batch], bool], *, seconds: float = COLD_SECONDS
    ) -> None:
        """Return when the batch is as asked; what it waits for is said on the way."""
        deadline, said = time.monotonic() + seconds, ""
        while not condition(self.client.batches.retrieve(batch.id)):
            explained = self.explain(batch)
            if (words := re.sub(r"\d+", "", explained["summary"])) != said:
                said = words
                show(f"{batch.id[-6:]}: {explained['status']}: {explained['summary']}")
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {explained}"
            time.sleep(0.3)

    def explain(self, batch: Batch) -> dict[str, Any]:
        """Why it waits, and where it runs."""
        explained: Any = self.client.get(f"/batches/{batch.id}/explain", cast_to=object)
        return dict(explained)

    def results(self, batch: Batch) -> list[dict[str, Any]]:
        """The parsed lines of the batch's output file."""
        assert batch.output_file_id is not None, batch
        text = self.client.files.content(batch.output_file_id).text
        return [json.loads(line) for line in text.split("\n") if line]

    def keep_logs(self, folder: Path) -> None:
        """The logs of all containers."""
        for service in self.services_named():
            if container := self.container(service):
                folder.mkdir(parents=True, exist_ok=True)
                done = self.engine.run("logs", container, check=False)
                (folder / f"{service}.log").write_text(done.stdout + done.stderr)

    def _host_variables(self) -> dict[str, str]:
        return {"DOCKER_HOST": self.engine.host} if self.engine.host else {}


@contextmanager
def running(stack: Stack) -> Iterator[Stack]:
    """A healthy fleet with models, of which nothing is left at the end."""
    began = time.monotonic()
    try:
        bring_up(stack)
        show(f"up after {time.monotonic() - began:.0f} s")
        yield stack
    finally:
        stack.down()


def bring_up(stack: Stack) -> None:
    """Up and well, with models.

    Compose gives up on a server that is slow to become healthy; it is asked again.
    """
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            stack.up("--no-build")
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace")
            if "unhealthy" not in said or time.monotonic() > deadline:
                raise AssertionError(said[-2000:]) from error
            show("Compose has lost patience, and is asked again")
        else:
            break
    stack.wait_well(seconds=_START_SECONDS)
    stack.add_models()


def assert_answered(stack: Stack, *batches: Batch) -> None:
    """Return once all rows of the batches have answers, however long a cold engine takes."""
    for batch in map(stack.ended, batches):
        assert batch.status == "completed", (batch.errors, stack.explain(batch))
        assert batch.error_file_id is None, stack.client.files.content(batch.error_file_id).text


def has_begun(batch: Batch) -> bool:
    """Whether a row has its result."""
    return batch.request_counts is not None and batch.request_counts.completed > 0


def assert_whole(stack: Stack, batch: Batch, rows: int) -> None:
    """The batch has completed, with each row's result once and in its place."""
    assert batch.status == "completed", batch.errors
    ids = [result["custom_id"] for result in stack.results(batch)]
    assert ids == [f"row-{row}" for row in range(rows)]


def chat_lines(rows: int, *, tokens: int = 8, model: str = CHAT) -> bytes:
    """Chat requests that generate exactly `tokens` tokens each."""
    bodies = [
        {
            "model": model,
            "messages": [{"role": "user", "content": f"Row {row}."}],
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        for row in range(rows)
    ]
    return _lines("/v1/chat/completions", bodies)


def embedding_lines(texts: Sequence[str]) -> bytes:
    """Embedding requests, one text each."""
    return _lines("/v1/embeddings", [{"model": EMBED, "input": text} for text in texts])


def _lines(url: str, bodies: Sequence[Mapping[str, Any]]) -> bytes:
    lines = (
        {"custom_id": f"row-{row}", "method": "POST", "url": url, "body": body}
        for row, body in enumerate(bodies)
    )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Compose is started by the library, which hands it our environment."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
