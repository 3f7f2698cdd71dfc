"""The fleet that is measured, and the steps that all measurements share."""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import psutil
import yaml
from openai import OpenAI
from openai.types import Batch

from benchmarks.rows import CHAT, EMBEDDINGS, URLS, lines
from cli.fleet import Fleet, Options
from cli.fleet.catalog import CHAT_MODEL, EMBED_MODEL, make_catalog

MODELS = {CHAT: CHAT_MODEL, EMBEDDINGS: EMBED_MODEL}
#: How often many batches are listed.
_LIST_SECONDS = 0.25
FINAL = ("completed", "failed", "expired", "cancelled")


def bare_environment() -> dict[str, str]:
    """The environment of an engine that nothing stands before."""
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return {**os.environ, **own}


class BenchFleet:
    """A running fleet with its client, and the models that are measured by the kind of rows."""

    def __init__(
        self, fleet: Fleet, models: Mapping[str, str] = MODELS, catalog: Path | None = None
    ) -> None:
        self.fleet = fleet
        self.models = dict(models)
        self.client = OpenAI(base_url=fleet.base_url, api_key=fleet.credentials.api_key)
        self.catalog = catalog or fleet.run_dir / "catalog.yaml"
        self.bare_environment = bare_environment()

    def upload(self, kind: str, rows: int, *, tokens: int = 128) -> str:
        """The id of an uploaded input."""
        body = lines(kind, rows, model=self.models[kind], tokens=tokens)
        return self.client.files.create(file=("rows.jsonl", body), purpose="batch").id

    def create(self, kind: str, file_id: str) -> Batch:
        return self.client.batches.create(
            input_file_id=file_id,
            endpoint=URLS[kind],  # type: ignore[arg-type]
            completion_window="24h",
        )

    def cancel(self, batch: Batch) -> Batch:
        """The batch once it has been cancelled."""
        self.client.batches.cancel(batch.id)
        while (batch := self.client.batches.retrieve(batch.id)).status not in FINAL:
            time.sleep(0.1)
        return batch

    def finish(self, batch: Batch) -> Batch:
        """The batch once it has completed."""
        while (batch := self.client.batches.retrieve(batch.id)).status not in FINAL:
            time.sleep(0.05)
        _require_completed(batch)
        return batch

    def finish_all(self, batches: Sequence[Batch]) -> None:
        """Return when these batches, which must be the newest, have completed.

        They are listed now and then, as whoever has many waits for them: asked for one by one and
        all the time, they would share the cores with the client.
        """
        while True:
            time.sleep(_LIST_SECONDS)
            newest = list(islice(self.client.batches.list(limit=100), len(batches)))
            assert {batch.id for batch in newest} == {batch.id for batch in batches}
            if all(batch.status in FINAL for batch in newest):
                break
        for batch in newest:
            _require_completed(batch)

    def seconds(self, kind: str, file_id: str) -> float:
        """From creating one batch of the file to its completion."""
        began = time.perf_counter()
        self.finish(self.create(kind, file_id))
        return time.perf_counter() - began

    def wait_for_replicas(self, kind: str, count: int) -> None:
        """Return when so many engines of the kind's model take live calls."""
        while self.replicas(kind) < count:
            time.sleep(1)

    def replicas(self, kind: str) -> int:
        """How many engines of the kind's model run."""
        # The field is ours.
        more = self.client.models.retrieve(self.models[kind]).model_extra or {}
        return int(more["replicas"])

    def gateway(self) -> psutil.Process:
        assert self.fleet.gateway.pid is not None
        return psutil.Process(self.fleet.gateway.pid)

    def lane_job(self, kind: str) -> psutil.Process:
        """The process of the kind's lane job."""
        name = f"{self.models[kind].lower()}@"
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if line[1:4] == ["-m", "worker", "lane"] and line[4].lower().startswith(name):
                return process
        raise RuntimeError(f"There is no lane job for {kind}.")


def _require_completed(batch: Batch) -> None:
    counts = batch.request_counts
    if batch.status != "completed" or counts is None or counts.failed:
        raise RuntimeError(f"The batch ended as {batch.status}: {counts}, {batch.errors}")


@contextmanager
def running_fleet(*, replicas: int = 1) -> Iterator[BenchFleet]:
    """A fleet in its own folder; both are removed afterwards.

    The chat model has so many engines from the start, if they are more than one.
    """
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as folder:
        catalog = None if replicas == 1 else _catalog(Path(folder), replicas)
        fleet = Fleet(Options(Path(folder), catalog=catalog), report=print)
        try:
            fleet.start()
            yield BenchFleet(fleet, catalog=catalog)
        finally:
            fleet.stop()


def _catalog(folder: Path, replicas: int) -> Path:
    """The demo's, with so many engines of the chat model."""
    made = yaml.safe_load(make_catalog(folder, []).read_text())
    made["models"][CHAT_MODEL] |= {"min_replicas": replicas, "max_replicas": replicas}
    path = folder / "bench-catalog.yaml"
    path.write_text(yaml.safe_dump(made))
    return path
