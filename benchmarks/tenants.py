"""Tenants of a fleet that is measured, and the batches that they create."""

import asyncio
import itertools
import json
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import NamedTuple

from openai import ConflictError, OpenAI
from openai.types import Batch

from benchmarks.rows import URLS, body, texts
from shared.state import State

#: Times of a tenth of a second are compared.
_POLL_SECONDS = 0.005
#: Rows of giants that are done before anything is measured.
_UNDER_WAY = 256
#: Of a batch, at most.
_MOST_ROWS = 50_000
_ENDS = ("completed", "failed", "expired", "cancelled")


class Place(NamedTuple):
    """Where a fleet serves, and its models by the kind of their rows."""

    base_url: str
    redis_url: str
    models: dict[str, str]


class Run(NamedTuple):
    """A batch that has completed, and when it was created and seen to be over (Unix seconds)."""

    batch_id: str
    began_at: float
    ended_at: float

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at


class Tenant:
    """A tenant with a key of its own."""

    def __init__(self, place: Place, name: str) -> None:
        key = f"sk-{secrets.token_hex(16)}"
        asyncio.run(_add_key(place.redis_url, name, key))
        self.name = name
        self.client = OpenAI(base_url=place.base_url, api_key=key)
        self._models = place.models

    def upload(self, kind: str, tokens: Sequence[int], *, words: int = 0) -> str:
        """The id of an input with a row for each number of output tokens.

        Prompts have 20 to 60 words, and `words` more.
        """
        rest = " word" * words
        rows = zip(itertools.count(), texts(len(tokens)), tokens, strict=False)
        content = b"".join(
            self._line(kind, number, text + rest, count) for number, text, count in rows
        )
        return self.client.files.create(file=("rows.jsonl", content), purpose="batch").id

    def create(self, kind: str, file_id: str, *, priority: int = 5) -> Batch:
        return self.client.batches.create(
            input_file_id=file_id,
            endpoint=URLS[kind],  # type: ignore[arg-type]
            completion_window="24h",
            extra_body={"priority": priority},
        )

    def run(self, kind: str, file_id: str, *, priority: int = 5) -> Run:
        """Create one batch of the file, and wait for its completion."""
        began = time.time()
        batch = self.create(kind, file_id, priority=priority)
        while (batch := self.client.batches.retrieve(batch.id)).status not in _ENDS:
            time.sleep(_POLL_SECONDS)
        if batch.status != "completed":
            raise RuntimeError(f"The batch ended as {batch.status}: {batch.errors}")
        return Run(batch.id, began, time.time())

    def cancel(self, batch: Batch) -> float:
        """Cancel it; returns the seconds until it is over."""
        began = time.perf_counter()
        batch = self.client.batches.cancel(batch.id)
        while batch.status not in _ENDS:
            time.sleep(_POLL_SECONDS)
            batch = self.client.batches.retrieve(batch.id)
        return time.perf_counter() - began

    def _line(self, kind: str, number: int, text: str, tokens: int) -> bytes:
        line = {
            "custom_id": f"row-{number}",
            "method": "POST",
            "url": URLS[kind],
            "body": body(kind, text, model=self._models[kind], tokens=tokens),
        }
        return json.dumps(line).encode() + b"\n"


async def _add_key(redis_url: str, tenant: str, key: str) -> None:
    state = State(redis_url)
    await state.keys.add(tenant, key)
    await state.close()


class Giants:
    """Giant batches that run all the time."""

    def __init__(self, batches: Sequence[tuple[Tenant, Batch]]) -> None:
        self._batches = batches

    def done(self) -> int:
        """How many of their rows have results. Raises RuntimeError when one has ended.

        A giant of several batches lasts until the last of them ends.
        """
        total, running = 0, set()
        for tenant, batch in self._batches:
            now = tenant.client.batches.retrieve(batch.id)
            if now.status in ("validating", "in_progress"):
                running.add(tenant.name)
            elif now.status not in ("finalizing", "completed"):
                raise RuntimeError(f"A giant batch ended as {now.status}.")
            total += now.request_counts.completed if now.request_counts else 0
        if len(running) < len({tenant.name for tenant, _ in self._batches}):
            raise RuntimeError("A giant ended too early. Ask for more --giant-rows.")
        return total

    def cancel(self) -> None:
        """Cancel them, all at once."""
        with ThreadPoolExecutor(max(1, len(self._batches))) as pool:
            for cancelling in [pool.submit(one.cancel, batch) for one, batch in self._batches]:
                # One that has ended is what `done` tells.
                with suppress(ConflictError):
                    cancelling.result()


@contextmanager
def giants(
    owners: Sequence[Tenant], kind: str, *, rows: int, tokens: int, words: int = 0
) -> Iterator[Giants]:
    """A giant of each of these tenants, under way, with so many rows together.

    One that is larger than a batch may be is several.
    Answers have half of the tokens to one and a half times as many. Where all have as many, they
    end together, and what a few seconds have of tokens depends on when they begin.
    """
    dice = random.Random(rows)
    lengths = [dice.randint(tokens // 2, tokens * 3 // 2) for _ in range(rows // len(owners))]
    batches = [lengths[at : at + _MOST_ROWS] for at in range(0, len(lengths), _MOST_ROWS)]
    inputs = [
        (owner, owner.upload(kind, batch, words=words)) for owner in owners for batch in batches
    ]
    running = Giants([(owner, owner.create(kind, file)) for owner, file in inputs])
    try:
        while running.done() < _UNDER_WAY:
            time.sleep(_POLL_SECONDS)
        yield running
    finally:
        running.cancel()
