"""The batches of calls at one gateway. Blocks: it is called in threads."""

import hashlib
import json
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Lock
from typing import Any, NamedTuple

from batchyard.calls.answers import Answer, answer_in
from cli.client.contexts import Target
from cli.client.downloads import download
from cli.client.following import follow
from cli.client.gateway import WAIT_SECONDS, Gateway
from cli.client.results import Order, Results
from cli.client.submission import create, known
from shared.errors import ConflictError, NotFoundError
from shared.lifecycle import FINAL, Status

Take = Callable[[str, Answer], None]


class BatchSettings(NamedTuple):
    """What each batch is created with."""

    window: str = "24h"
    priority: int = 5
    metadata: Mapping[str, str] | None = None


class KnownBatch(NamedTuple):
    """A batch that an earlier process of the same run has made, and its calls."""

    id: str
    custom_ids: list[str]


class CallBatches:
    """Makes batches of calls, and reads their answers.

    Those of a run with a name have keys that count up, so that the next process finds them.
    """

    def __init__(self, target: Target, settings: BatchSettings, *, run: str | None) -> None:
        self._gateway = Gateway(target, patience=WAIT_SECONDS)
        self._settings = settings
        self.run = run
        self._number = 0
        self._lock = Lock()
        self._users = 0
        self._users_lock = Lock()
        self._is_closing = False

    def known(self) -> list[KnownBatch]:
        """The batches of the run so far, the oldest first; those to be made come after them.

        Raises what the gateway refuses; then it may be asked again.
        """
        found = []
        with self._in_use(), self._lock:
            self._number = 0
            while batch := known(self._gateway, self._numbered_key()):
                self._number += 1
                # Of one that failed, no call was asked.
                if batch["status"] != Status.FAILED:
                    found.append(KnownBatch(batch["id"], self._custom_ids(batch["input_file_id"])))
        return found

    def create(self, endpoint: str, lines: bytes) -> str:
        """The id of a new batch of these request lines. Raises what the gateway refuses."""
        window, priority, metadata = self._settings
        body = {
            "endpoint": endpoint,
            "completion_window": window,
            "priority": priority,
            "metadata": dict(metadata) if metadata else None,
        }
        with self._in_use(), tempfile.TemporaryDirectory(prefix="batchyard-") as folder:
            path = Path(folder) / "calls.jsonl"
            path.write_bytes(lines)
            if self.run is None:
                key = f"calls-{secrets.token_hex(20)}"
                made = create(self._gateway, path, body, key, is_shown=False)
            else:
                made = self._create_next(path, body)
        batch_id: str = made["id"]
        return batch_id

    def follow(self, batch_id: str, take: Take, stop: Event) -> Mapping[str, Any] | None:
        """Hand over each answer as it comes; returns the batch at its end, or None if stopped."""
        with self._in_use():
            return self._follow(batch_id, take, stop)

    def cancel(self, batch_id: str) -> None:
        """End a batch whose answers nobody wants. Raises ConflictError if it has ended."""
        with self._in_use():
            self._gateway.post(f"batches/{batch_id}/cancel")

    def close(self) -> None:
        """Close the connections, once no thread uses them any more."""
        with self._in_use():
            self._is_closing = True

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._users_lock:
            self._users += 1
        try:
            yield
        finally:
            with self._users_lock:
                self._users -= 1
                # A connection that another thread is making would stay open.
                if self._is_closing and not self._users:
                    self._gateway.close()

    def _follow(self, batch_id: str, take: Take, stop: Event) -> Mapping[str, Any] | None:
        results: Results | None = None
        with closing(follow(self._gateway, batch_id)) as changes:
            for batch in changes:
                if stop.is_set():
                    return None
                if batch is None:
                    continue
                results = results or self._results(batch)
                counts = batch["request_counts"]
                if counts["completed"] + counts["failed"] > results.offset:
                    _read(results, take)
        ended = self._gateway.get(f"batches/{batch_id}")
        if results is not None and not results.is_complete and ended["status"] != Status.FAILED:
            _read(results, take)
        return ended

    def _results(self, batch: Mapping[str, Any]) -> Results:
        # The order of completion is forgotten a day after the end.
        order: Order = "input" if batch["status"] in FINAL else "completion"
        return Results(self._gateway, batch["id"], order=order)

    def _create_next(self, path: Path, body: Mapping[str, Any]) -> dict[str, Any]:
        # One at a time: a number that is left out would hide those behind it.
        with self._lock:
            while True:
                key = self._numbered_key()
                self._number += 1
                try:
                    return create(self._gateway, path, body, key, is_shown=False)
                except ConflictError:
                    # Another process of the same run was faster.
                    continue

    def _numbered_key(self) -> str:
        parts = json.dumps([self._gateway.target.url, self.run, self._number])
        return f"calls-{hashlib.sha256(parts.encode()).hexdigest()[:40]}"

    def _custom_ids(self, file_id: str) -> list[str]:
        try:
            lines = b"".join(download(self._gateway, file_id)).splitlines()
        except NotFoundError:
            # It is no longer kept.
            return []
        return [json.loads(line)["custom_id"] for line in lines]


def _read(results: Results, take: Take) -> None:
    for piece in results.read():
        for line in piece.splitlines():
            take(*answer_in(line))
