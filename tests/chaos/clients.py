"""The clients of a run: publishers over HTTP and the bus, subscribers, watchers.

They keep to the contract: what has no clear answer is sent again under the same id. All that they
were promised is in their journals, for the checker.
"""

import asyncio
import json
import random
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import aio_pika
import httpx
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
from aio_pika.exceptions import AMQPError
from redis.asyncio import Redis

from shared import ids
from shared.bus import messages, open_messages, topology
from shared.bus.received import RECEIVED
from shared.errors import TransientError
from shared.state.state import NAMESPACE
from shared.storage import Storage
from shared.submission.additions import MAX_ADDITION_BYTES
from shared.tasks import end
from tests.chaos.fleet import (
    REPLY_QUEUE_ARGUMENTS,
    TENANTS,
    ChaosFleet,
    reply_queues,
    subscriptions,
)
from tests.chaos.journal import Journal
from tests.chaos.pipeline_rows import declaration, table
from tests.chaos.plan import GATEWAYS
from tests.chaos.rows import CHAT, REAL_MODEL, lines, request

FINAL = {"completed", "failed", "expired", "cancelled"}
_PAUSE_SECONDS = 0.2
_CALL_SECONDS = 10.0
_CONNECT_SECONDS = 60.0
#: After so long without an answer, a message is sent again.
_ANSWER_SECONDS = 30.0
#: The errors that show a RabbitMQ client that its connection is gone.
_LOST = (AMQPError, OSError, RuntimeError)
_OK, _CONFLICT, _TOO_MANY, _SERVER_ERROR = 200, 409, 429, 500
#: The number of rows of a batch: mostly few, sometimes enough for waves.
_SMALL, _LARGE = (1, 60), (150, 400)
#: How many of the batches and pipelines that may have a cache have one.
_CACHED = 0.4
#: Bytes added to each row of a batch whose input and output come in several parts.
_PADDING = 24_000


class Clients:
    """All clients of one run."""

    def __init__(self, fleet: ChaosFleet, *, seed: int, at_once: int) -> None:
        self._fleet = fleet
        self._dice = random.Random(seed)
        self._run = f"{seed:x}-{secrets.token_hex(3)}"
        self._at_once = at_once
        self._lives = self._all_lives()
        folder = fleet.run_dir / "journal"
        self.published = Journal(folder / "published.jsonl")
        self.watched = Journal(folder / "watched.jsonl")
        self.received = {
            queue: Journal(folder / f"received-{queue}.jsonl") for _, queue in subscriptions()
        }
        self._replies = Journal(folder / "replies.jsonl")
        #: Messages that were answered.
        self._answered = defaultdict[str, asyncio.Event](asyncio.Event)
        #: Acts as another system of the tenant, which puts objects where Batchyard may read them.
        self._storage = Storage(*fleet.s3)
        self.counts: Counter[str] = Counter()
        #: Batches that were promised and have not been seen to end.
        self.open: set[str] = set()
        self._http: dict[str, list[httpx.AsyncClient]] = {}
        self._keys: dict[str, str] = {}
        self._channels: dict[str, Any] = {}
        self._publishing: dict[str, asyncio.Lock] = {}
        self._number = 0
        self._stack = AsyncExitStack()
        self._receiver: asyncio.Server | None = None
        self.stopping = asyncio.Event()
        #: While it is cleared, nothing new begins, and lanes become idle.
        self.may_begin = asyncio.Event()
        self.may_begin.set()

    async def start(self) -> None:
        """Connect all of them. The fleet must be whole."""
        hook = await self._receive_webhooks()
        for tenant in TENANTS:
            key = await self._fleet.key(tenant)
            self._publishing[tenant] = asyncio.Lock()
            self._http[tenant] = [
                await self._stack.enter_async_context(
                    httpx.AsyncClient(
                        base_url=self._fleet.url(self._fleet.link("clients", gateway)),
                        headers={"authorization": f"Bearer {key}"},
                        timeout=_CALL_SECONDS,
                    )
                )
                for gateway in GATEWAYS
            ]
            await self._insist(tenant, "POST", "/v1/webhook_endpoints", json=_hook(hook))
        for tenant, queue in (*subscriptions(), *reply_queues()):
            await self._subscribe(tenant, queue)

    @property
    def progress(self) -> tuple[int, ...]:
        """A count that grows only while batches make progress; repeated calls do not count."""
        moving = ("lives", "batches", "events", "webhooks", *sorted(FINAL))
        return tuple(self.counts[name] for name in moving)

    async def work(self) -> None:
        """Create batches and follow them to their ends, several at a time, until `stopping`."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._at_once):
                dice = random.Random(self._dice.random())
                group.create_task(self._one_after_the_other(dice))
                # So that they are not all at the same step.
                await asyncio.sleep(0.05 * number)

    async def close(self) -> None:
        """Disconnect all."""
        await self._stack.aclose()
        if self._receiver is not None:
            self._receiver.close()
        self._storage.close()
        for journal in (self.published, self.watched, self._replies, *self.received.values()):
            journal.close()

    async def _one_after_the_other(self, dice: random.Random) -> None:
        while not self.stopping.is_set():
            await self.may_begin.wait()
            tenant = dice.choice(TENANTS)
            await next(self._lives)(tenant, dice)
            self.counts["lives"] += 1
            await asyncio.sleep(dice.uniform(0, 0.3))

    def _all_lives(self) -> Iterator[Callable[[str, random.Random], Awaitable[None]]]:
        """One batch of every kind, then all kinds in proportion, however slow they are."""
        often: dict[Callable[[str, random.Random], Awaitable[None]], int] = {
            self._plain: 5,
            self._by_bus: 6,
            self._by_upload: 2,
            self._by_dataset: 2,
            self._by_additions: 3,
            self._by_pipeline: 3,
            self._by_open_messages: 3,
            self._cancelled: 2,
            self._cancelled_by_bus: 1,
            self._paused: 1,
            self._refused: 1,
            self._expiring: 1,
            self._retried: 2,
            self._deleted: 2,
            self._aged: 1,
        }
        if REAL_MODEL in self._fleet.models:
            # What comes of its answers is not known.
            del often[self._by_pipeline]
        if self._fleet.has_deadly_rows:
            often[self._deadly] = 1
        yield from often
        while True:
            yield from self._dice.sample(
                list(often), sum(often.values()), counts=list(often.values())
            )

    # The lives of batches, from the file to the end.

    async def _plain(self, tenant: str, dice: random.Random) -> None:
        intent = self._intent(tenant, dice, "plain", may_cache=True)
        file_id = await self._upload(tenant, _input(intent))
        await self._create(intent, file_id, **_cache(intent))
        await self._see_end(intent, dice)
        await self._download(intent)

    async def _by_bus(self, tenant: str, dice: random.Random) -> None:
        intent = self._intent(tenant, dice, "plain", door="bus", may_cache=True)
        submission = _submission(intent)
        match dice.choice(("inline", "inline", "file", "s3")):
            case "file":
                file_id = await self._upload(tenant, _input(intent))
                submission["input"] = {"kind": "file", "file_id": file_id}
            case "s3":
                submission["input"] = await self._put(tenant, intent["key"], _input(intent))
            case _:
                pass
        await self._publish(intent, submission, is_answered=True)
        if dice.random() < 0.3:
            # As a publisher does that died after the confirm.
            await self._publish(intent, submission, is_answered=True)
        await self._see_end(intent, dice)

    async def _by_upload(self, tenant: str, dice: random.Random) -> None:
        intent = self._intent(tenant, dice, "plain")
        body = _input(intent)
        file_id = None
        while file_id is None:
            file_id = await self._upload_in_parts(tenant, body)
        await self._create(intent, file_id)
        await self._see_end(intent, dice)

    async def _by_dataset(self, tenant: str, dice: random.Random) -> None:
        """A batch over a table in S3, whose template gives the requests that it was made of."""
        intent = self._intent(tenant, dice, "plain", may_cache=True)
        place = await self._put(tenant, intent["key"], _input(intent))
        names = request(intent["asks"], 0, intent["model"])["body"]
        dataset = {
            "objects": f"s3://{place['bucket']}/{place['key']}",
            "template": {name: f"{{{{ body.{name} }}}}" for name in names},
            "custom_id": "custom_id",
        }
        await self._create(intent, input=dataset, **_cache(intent))
        await self._see_end(intent, dice)
        await self._download(intent)

    async def _by_additions(self, tenant: str, dice: random.Random) -> None:
        """An open batch, which gets its rows in several calls; some of them come again."""
        intent = self._intent(tenant, dice, "plain")
        await self._create(intent, open=True, model=intent["model"])
        path, left = f"/v1/batches/{intent['batch']}", intent["rows"]
        while left:
            count = dice.randint(1, len(left))
            while len(body := _input({**intent, "rows": left[:count]})) > MAX_ADDITION_BYTES:
                count //= 2
            for _ in range(dice.choice((1, 1, 2))):
                answer = await self._insist(tenant, "POST", f"{path}/requests", content=body)
                if (status := answer.status_code) != _OK:
                    self.published.note("surprise", path=path, status=status, said=answer.text)
            left = left[count:]
            await asyncio.sleep(dice.uniform(0, 0.5))
        await self._steer(intent, "/close", None)
        await self._see_end(intent, dice)
        await self._download(intent)

    async def _by_pipeline(self, tenant: str, dice: random.Random) -> None:
        """Two calls, and transforms between; some of them are cancelled."""
        self._number += 1
        key = f"{self._run}-{self._number}"
        size = _LARGE if dice.random() < 0.2 else _SMALL
        intent: dict[str, Any] = {
            "key": key,
            "pipeline": ids.pipeline_id(tenant, f"http:{key}"),
            "tenant": tenant,
            "model": dice.choice([one for one in self._fleet.models if one != REAL_MODEL]),
            "rows": list(range(dice.randint(*size))),
            "cancel": dice.random() < 0.15,
            **self._asking(key, is_cached=dice.random() < _CACHED),
        }
        self.published.note("pipeline", **intent)
        place = await self._put(tenant, key, table(intent))
        body = declaration(intent, f"s3://{place['bucket']}/{place['key']}")
        headers = {"idempotency-key": key}
        answer = await self._insist(tenant, "POST", "/v1/pipelines", json=body, headers=headers)
        made = answer.json().get("id", answer.text)
        self.published.note("piped", key=key, pipeline=made)
        self.open.add(intent["pipeline"])
        self.counts["pipelines"] += 1
        if intent["cancel"]:
            await asyncio.sleep(dice.uniform(0, 4))
            path = f"/v1/pipelines/{intent['pipeline']}/cancel"
            await self._insist(tenant, "POST", path)
        await self._see_pipeline_end(intent, dice)

    async def _see_pipeline_end(self, intent: dict[str, Any], dice: random.Random) -> None:
        path = f"/v1/pipelines/{intent['pipeline']}"
        while True:
            found = (await self._insist(intent["tenant"], "GET", path)).json()
            if (status := found.get("status", "")) in FINAL:
                self.counts[f"pipelines {status}"] += 1
                self.open.discard(intent["pipeline"])
                return
            await asyncio.sleep(dice.uniform(0.2, 0.8))

    async def _by_open_messages(self, tenant: str, dice: random.Random) -> None:
        """An open batch over the bus: created, given rows and closed by messages.

        Each waits for the answers before it, since messages may overtake each other; some come
        again, also after the batch was closed.
        """
        intent = self._intent(tenant, dice, "plain", door="bus")
        opening = {**_submission(intent), "input": {"kind": "open", "model": intent["model"]}}
        await self._until_answered(intent, intent["key"], messages.SUBMIT, opening)
        self._accept(intent, intent["batch"])
        requests = _submission(intent)["input"]["requests"]
        batch = {"batch_id": intent["batch"]}
        additions = list[tuple[dict[str, Any], str, str, dict[str, Any]]]()
        while requests:
            count, message_id = dice.randint(1, len(requests)), f"{intent['key']}.{len(additions)}"
            body = {"schema": "batch.requests/1", **batch, "requests": requests[:count]}
            additions.append((intent, message_id, open_messages.REQUESTS, body))
            for _ in range(dice.choice((0, 0, 1))):
                await self._ask(*additions[-1])
            await self._until_answered(*additions[-1])
            requests = requests[count:]
            await asyncio.sleep(dice.uniform(0, 0.5))
        closing = {"schema": "batch.close/1", **batch}
        await self._until_answered(intent, f"{intent['key']}.close", open_messages.CLOSE, closing)
        if dice.random() < 0.3:
            # As the broker does that has lost the ack.
            await self._ask(*dice.choice(additions))
        await self._see_end(intent, dice)
        await self._download(intent)

    async def _cancelled(self, tenant: str, dice: random.Random) -> None:
        intent = self._intent(tenant, dice, "cancelled")
        await self._create(intent, await self._upload(tenant, _input(intent)))
        await asyncio.sleep(dice.uniform(0, 1.5))
        answer = await self._insist(tenant, "POST", f"/v1/batches/{intent['batch']}/cancel")
        self.published.note("cancelled", key=intent["key"], status=answer.status_code)
        await self._see_end(intent, dice)

    async def _cancelled_by_bus(self, tenant: str, dice: random.Random) -> None:
        intent = self._intent(tenant, dice, "cancelled")
        await self._create(intent, await self._upload(tenant, _input(intent)))
        await asyncio.sleep(dice.uniform(0, 1.5))
        body = {"schema": "batch.cancel/1", "batch_id": intent["batch"]}
        await self._ask(intent, f"{intent['key']}.cancel", messages.CANCEL, body)
        await self._see_end(intent, dice)

    async def _paused(self, tenant: str, dice: random.Random) -> None:
        intent = self._intent(tenant, dice, "plain")
        await self._create(intent, await self._upload(tenant, _input(intent)))
        for verb, body in (("/pause", None), ("", {"priority": dice.randint(0, 9)})):
            await self._steer(intent, verb, body)
            await asyncio.sleep(dice.uniform(0, 1))
        await self._steer(intent, "/resume", None)
        await self._see_end(intent, dice)

    async def _deadly(self, tenant: str, dice: random.Random) -> None:
        """A batch with a row that kills its engine."""
        intent = self._intent(tenant, dice, "deadly")
        await self._create(intent, await self._upload(tenant, _input(intent)))
        await self._see_end(intent, dice)

    async def _refused(self, tenant: str, dice: random.Random) -> None:
        intent = self._intent(tenant, dice, "refused")
        body = _input(intent)
        await self._create(intent, await self._upload(tenant, body + body))
        await self._see_end(intent, dice)

    async def _expiring(self, tenant: str, dice: random.Random) -> None:
        intent = self._intent(tenant, dice, "expiring", door="bus", size=_LARGE)
        until = datetime.now(UTC) + timedelta(seconds=dice.uniform(2, 15))
        await self._publish(intent, {**_submission(intent), "not_after": until.isoformat()})
        await self._see_end(intent, dice, until=until.timestamp())

    async def _retried(self, tenant: str, dice: random.Random) -> None:
        intent = self._intent(tenant, dice, "plain")
        await self._create(intent, await self._upload(tenant, _input(intent)))
        ended = await self._see_end(intent, dice)
        if not ended.get("error_file_id"):
            return
        errors = await self._insist(tenant, "GET", f"/v1/files/{ended['error_file_id']}/content")
        rows = [
            int(json.loads(line)["custom_id"].rpartition(".")[2])
            for line in errors.text.splitlines()
        ]
        answer = await self._insist(tenant, "POST", f"/v1/batches/{intent['batch']}/retry")
        again = {**intent, "key": intent["key"], "rows": rows, "batch": answer.json()["id"]}
        self.published.note("intended", **again)
        self._accept(again, answer.json()["id"])
        await self._see_end(again, dice)

    async def _deleted(self, tenant: str, dice: random.Random) -> None:
        intent = self._intent(tenant, dice, "plain")
        file_id = await self._upload(tenant, _input(intent))
        await self._create(intent, file_id)
        # While the batch runs: it reads the object until its end.
        await self._insist(tenant, "DELETE", f"/v1/files/{file_id}")
        await self._see_end(intent, dice)

    async def _aged(self, tenant: str, dice: random.Random) -> None:
        """A file that has expired; a short run can only change its date."""
        file_id = await self._upload(tenant, b"old\n")
        redis: Redis[str] = Redis.from_url(self._fleet.redis.url)
        while not self.stopping.is_set():
            with suppress(Exception):
                await redis.hset(f"{NAMESPACE}file:{file_id}", "expires_at", "1")
                await redis.zadd(f"{NAMESPACE}expiring", {file_id: 1})
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        await redis.aclose()

    # The steps of those lives.

    def _intent(
        self,
        tenant: str,
        dice: random.Random,
        kind: str,
        *,
        door: str = "http",
        size: tuple[int, int] | None = None,
        may_cache: bool = False,
    ) -> dict[str, Any]:
        """A batch that is about to be submitted, with the id that it must get.

        With `may_cache`, some ask what was asked before, by their tenant and by others.
        """
        self._number += 1
        key = f"{self._run}-{self._number}"
        size = size or (_LARGE if dice.random() < 0.1 else _SMALL)
        is_long = door == "http" and kind == "plain" and dice.random() < 0.02
        message_id = key if door == "bus" else f"http:{key}"
        intent: dict[str, Any] = {
            "key": key,
            "batch": ids.batch_id(tenant, message_id),
            "tenant": tenant,
            "door": door,
            "kind": kind,
            "model": dice.choice(self._fleet.models),
            "rows": list(range(700 if is_long else dice.randint(*size))),
            "padding": _PADDING if is_long else 0,
        }
        intent |= self._asking(key, is_cached=may_cache and dice.random() < _CACHED)
        intent["deadly"] = dice.choice(intent["rows"]) if kind == "deadly" else None
        self.published.note("intended", **intent)
        return intent

    def _asking(self, key: str, *, is_cached: bool) -> dict[str, Any]:
        """Of which key's requests it has, and whether it takes and gives answers of before."""
        return {"asks": f"{self._run}-common" if is_cached else key, "cache": is_cached}

    async def _upload(self, tenant: str, body: bytes) -> str:
        answer = await self._insist(
            tenant,
            "POST",
            "/v1/files",
            files={"file": ("in.jsonl", body)},
            data={"purpose": "batch"},
        )
        file_id: str = answer.json()["id"]
        return file_id

    async def _upload_in_parts(self, tenant: str, body: bytes) -> str | None:
        """None if the upload has ended without a file; the caller begins again, as clients do."""
        half = len(body) // 2
        intent = {
            "bytes": len(body),
            "filename": "in.jsonl",
            "mime_type": "application/jsonl",
            "purpose": "batch",
        }
        upload = (await self._insist(tenant, "POST", "/v1/uploads", json=intent)).json()["id"]
        parts = []
        for data in (body[:half], body[half:]):
            answer = await self._insist(
                tenant, "POST", f"/v1/uploads/{upload}/parts", files={"data": data}
            )
            if self._is_forgotten(answer):
                return None
            parts.append(answer.json()["id"])
        path = f"/v1/uploads/{upload}/complete"
        answer = await self._insist(tenant, "POST", path, json={"part_ids": parts})
        if self._is_forgotten(answer):
            return None
        file = answer.json().get("file")
        if answer.status_code != 200 or file is None:
            self.published.note("surprise", path=path, status=answer.status_code, said=answer.text)
            return None
        file_id: str = file["id"]
        return file_id

    def _is_forgotten(self, answer: httpx.Response) -> bool:
        """Whether there is no such upload, where uploads that were not completed may be lost."""
        return False

    async def _create(
        self, intent: dict[str, Any], file_id: str | None = None, **more: Any
    ) -> None:
        answer = await self._insist(
            intent["tenant"],
            "POST",
            "/v1/batches",
            json={
                "input_file_id": file_id,
                "endpoint": CHAT,
                "completion_window": "24h",
                **more,
            },
            headers={"idempotency-key": intent["key"]},
        )
        self._accept(intent, answer.json().get("id", answer.text))

    def _accept(self, intent: dict[str, Any], batch_id: str) -> None:
        self.published.note("accepted", key=intent["key"], batch=batch_id)
        self.open.add(batch_id)
        self.counts["batches"] += 1
        self.counts["rows"] += len(intent["rows"])

    async def _steer(self, intent: dict[str, Any], verb: str, body: dict[str, Any] | None) -> None:
        """Pause, resume or change a batch, which may have ended."""
        path = f"/v1/batches/{intent['batch']}{verb}"
        answer = await self._insist(intent["tenant"], "POST", path, json=body)
        if answer.status_code not in (_OK, _CONFLICT):
            self.published.note("surprise", path=path, status=answer.status_code, said=answer.text)

    async def _put(self, tenant: str, key: str, body: bytes) -> dict[str, Any]:
        """An input in S3, as a submission names it."""
        while True:
            with suppress(TransientError):
                stored = await self._storage.put(f"inbox/{tenant}/{key}.jsonl", body)
                place = {"bucket": self._storage.bucket, "key": stored.key, "etag": stored.etag}
                return {"kind": "s3", **place, "size": len(body)}
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _publish(
        self, intent: dict[str, Any], body: dict[str, Any], *, is_answered: bool = False
    ) -> None:
        """Return once the broker has confirmed it. If it is refused, it may be a dead letter."""
        if is_answered:
            await self._ask(intent, intent["key"], messages.SUBMIT, body)
        else:
            key = topology.submit_key(intent["tenant"])
            await self._send(
                intent, key, _message(intent["tenant"], intent["key"], messages.SUBMIT, body)
            )
        self._accept(intent, intent["batch"])

    async def _ask(
        self, intent: dict[str, Any], message_id: str, kind: str, body: dict[str, Any]
    ) -> None:
        """Publish a message that must be answered."""
        tenant = intent["tenant"]
        message = _message(tenant, message_id, kind, body)
        message.reply_to = dict(reply_queues())[tenant]
        await self._send(intent, RECEIVED[kind].key(tenant), message)
        verb = kind.split(".")[1]
        self.published.note("asked", message=message_id, batch=intent["batch"], verb=verb)

    async def _until_answered(
        self, intent: dict[str, Any], message_id: str, kind: str, body: dict[str, Any]
    ) -> None:
        """Publish a message, again and again if need be, until its answer is there."""
        answered = self._answered[message_id]
        while not answered.is_set():
            await self._ask(intent, message_id, kind, body)
            with suppress(TimeoutError):
                await asyncio.wait_for(answered.wait(), _ANSWER_SECONDS)

    async def _send(
        self, intent: dict[str, Any], routing_key: str, message: aio_pika.Message
    ) -> None:
        while True:
            try:
                # The loss of a connection leaves all of its publishers without an answer.
                async with asyncio.timeout(_CALL_SECONDS):
                    exchange = await self._exchange(intent["tenant"])
                    await exchange.publish(message, routing_key, mandatory=True)
                break
            except _LOST:
                self.counts["publishes repeated"] += 1
            except asyncio.CancelledError:
                # aiormq cancels the waiters of a connection that it declares stuck.
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                self.counts["publishes repeated"] += 1
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _exchange(self, tenant: str) -> Any:
        async with self._publishing[tenant]:
            if (channel := self._channels.get(tenant)) is None or channel.is_closed:
                url = self._fleet.amqp_url(tenant) + "?heartbeat=10"
                connection = await aio_pika.connect(url, timeout=5)
                channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
                self._channels[tenant] = channel
                self._stack.push_async_callback(connection.close)
            return await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)

    async def _see_end(
        self, intent: dict[str, Any], dice: random.Random, *, until: float | None = None
    ) -> dict[str, Any]:
        """The batch at its end, found by polling or by its stream of events."""
        batch_id, tenant = intent["batch"], intent["tenant"]
        streams = dice.random() < 0.4
        seen = -1
        while True:
            answer = await self._insist(tenant, "GET", f"/v1/batches/{batch_id}")
            if answer.status_code == 404:
                # A batch from the bus may not exist yet, and after its `not_after` it never will.
                if until is not None and time.time() > until + 30:
                    self.open.discard(batch_id)
                    return {}
            else:
                batch: dict[str, Any] = answer.json()
                self.watched.note("seen", batch=batch_id, status=batch["status"])
                if batch["status"] in FINAL:
                    self.open.discard(batch_id)
                    self.counts[batch["status"]] += 1
                    return batch
                if streams:
                    seen = await self._stream(tenant, batch_id, seen, dice)
            await asyncio.sleep(dice.uniform(0.2, 0.8))

    async def _stream(self, tenant: str, batch_id: str, seen: int, dice: random.Random) -> int:
        """The highest sequence number, once the stream has broken off or ended."""
        path, headers = f"/v1/batches/{batch_id}/events", {"last-event-id": str(seen)}
        client = dice.choice(self._http[tenant])
        with suppress(httpx.HTTPError):
            async with client.stream("GET", path, headers=headers) as answer:
                kind, number = "", seen
                async for line in answer.aiter_lines():
                    name, _, text = line.partition(": ")
                    if name == "event":
                        kind = text
                    elif name == "id":
                        number = int(text)
                    elif name == "data":
                        status = json.loads(text)["status"]
                        self.watched.note(
                            "streamed", batch=batch_id, status=status, sequence=number, kind=kind
                        )
                    elif not line and number > seen:
                        seen = number
        return seen

    async def _download(self, intent: dict[str, Any]) -> None:
        """What a completed batch's files hold, as its owner gets them."""
        tenant = intent["tenant"]
        batch = (await self._insist(tenant, "GET", f"/v1/batches/{intent['batch']}")).json()
        for kind in ("output", "error"):
            if file_id := batch[f"{kind}_file_id"]:
                answer = await self._insist(tenant, "GET", f"/v1/files/{file_id}/content")
                self.watched.note(
                    "downloaded",
                    batch=intent["batch"],
                    kind=kind,
                    status=answer.status_code,
                    bytes=len(answer.content),
                )

    async def _insist(self, tenant: str, method: str, path: str, **intent: Any) -> httpx.Response:
        """The first clear answer of either gateway; calls without one are repeated."""
        number = self._dice.randrange(len(GATEWAYS))
        while True:
            number = (number + 1) % len(GATEWAYS)
            with suppress(httpx.HTTPError):
                answer = await self._http[tenant][number].request(method, path, **intent)
                if answer.status_code < _SERVER_ERROR and answer.status_code != _TOO_MANY:
                    self.counts[f"HTTP {answer.status_code}"] += 1
                    return answer
            self.counts["calls repeated"] += 1
            await asyncio.sleep(_PAUSE_SECONDS)

    # Subscribers as the contract demands: a durable queue, and an ack after the journal entry.

    async def _subscribe(self, tenant: str, queue: str) -> None:
        """Return once it listens for the first time."""
        listening = asyncio.Event()
        task = asyncio.create_task(self._keep_listening(tenant, queue, listening))
        self._stack.push_async_callback(end, task)
        await listening.wait()

    async def _keep_listening(self, tenant: str, queue: str, listening: asyncio.Event) -> None:
        while True:
            try:
                await self._listen(tenant, queue, listening)
            except _LOST:
                pass
            except asyncio.CancelledError:
                # As in `_publish`.
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
            self.counts["subscribed again"] += 1
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _listen(self, tenant: str, queue: str, listening: asyncio.Event) -> None:
        """Take events until the subscription is lost."""
        lost = asyncio.Event()
        # Not aio-pika's robust connection: if it is lost while it restores its consumers, it stays
        # connected, and deaf.
        connection = await aio_pika.connect(
            self._fleet.amqp_url(tenant) + "?heartbeat=10", timeout=_CONNECT_SECONDS
        )
        try:
            connection.close_callbacks.add(lambda *_: lost.set())
            channel = await connection.channel()
            channel.close_callbacks.add(lambda *_: lost.set())
            await channel.set_qos(prefetch_count=200, timeout=_CONNECT_SECONDS)
            is_for_events = queue in self.received
            declared = await channel.declare_queue(
                queue,
                durable=True,
                arguments={
                    "x-queue-type": "quorum",
                    **({} if is_for_events else REPLY_QUEUE_ARGUMENTS),
                },
                timeout=_CONNECT_SECONDS,
            )
            if is_for_events:
                exchange = await channel.get_exchange(topology.EVENTS_EXCHANGE, ensure=False)
                for kinds in topology.TENANT_EVENTS:
                    await declared.bind(exchange, f"{kinds}.{tenant}.*", timeout=_CONNECT_SECONDS)
            take = partial(self._take, queue) if is_for_events else self._take_reply
            await declared.consume(take, timeout=_CONNECT_SECONDS)
            listening.set()
            # The broker may cancel a consumer and keep its channel.
            while not lost.is_set() and await _consumers(connection, queue):
                with suppress(TimeoutError):
                    await asyncio.wait_for(lost.wait(), _CALL_SECONDS)
        finally:
            with suppress(*_LOST):
                await asyncio.wait_for(connection.close(), _CALL_SECONDS)

    async def _take(self, queue: str, message: AbstractIncomingMessage) -> None:
        event = json.loads(message.body)
        self.received[queue].note(
            "event",
            id=event["id"],
            type=event["type"],
            sequence=event["sequence"],
            source=event["source"],
            data=event["data"],
            message_id=message.message_id,
            redelivered=message.redelivered,
        )
        self.counts["events"] += 1
        with suppress(*_LOST):
            # It may come again after a lost connection.
            await message.ack()

    async def _take_reply(self, message: AbstractIncomingMessage) -> None:
        reply = json.loads(message.body)
        is_accepted = reply["status"] == "accepted"
        self._replies.note(
            "reply",
            # Which it is where a message names no other.
            message=message.correlation_id,
            status=reply["status"],
            about=reply["batch"]["id"] if is_accepted else reply["error"]["code"],
        )
        self.counts["replies"] += 1
        self._answered[message.correlation_id or ""].set()
        with suppress(*_LOST):
            await message.ack()

    async def _receive_webhooks(self) -> str:
        """The URL of a receiver that takes all of them."""
        journal = Journal(self._fleet.run_dir / "journal" / "webhooks.jsonl")
        self._stack.callback(journal.close)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.IncompleteReadError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                headers = dict(
                    line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line
                )
                event = json.loads(await reader.readexactly(int(headers["content-length"])))
                journal.note(
                    "webhook",
                    id=headers["webhook-id"],
                    type=event["type"],
                    batch=event["data"]["id"],
                )
                self.counts["webhooks"] += 1
                writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
                await writer.drain()
            writer.close()

        port = self._fleet.ports.get("webhooks")
        self._receiver = await asyncio.start_server(serve, self._fleet.host, port)
        return f"{self._fleet.url(port)}/hook"


@asynccontextmanager
async def all_clients(
    fleet: ChaosFleet, *, seed: int, at_once: int
) -> AsyncIterator[tuple[Clients, "asyncio.Task[None]"]]:
    """The clients at work, and the task that ends after they were asked to stop and are done."""
    clients = Clients(fleet, seed=seed, at_once=at_once)
    try:
        await clients.start()
        work = asyncio.create_task(clients.work())
        try:
            yield clients, work
        finally:
            await end(work)
            if not work.cancelled():
                # What it failed with is told.
                work.result()
    finally:
        await clients.close()


async def _consumers(connection: AbstractConnection, queue: str) -> int:
    async with await connection.channel() as channel:
        found = await channel.declare_queue(queue, passive=True, timeout=_CONNECT_SECONDS)
        return found.declaration_result.consumer_count or 0


def _message(tenant: str, message_id: str, kind: str, body: dict[str, Any]) -> aio_pika.Message:
    return aio_pika.Message(
        json.dumps(body).encode(),
        message_id=message_id,
        type=kind,
        content_type="application/json",
        user_id=tenant,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )


def _input(intent: dict[str, Any]) -> bytes:
    made = {"padding": intent["padding"], "deadly": intent["deadly"]}
    return lines(intent["asks"], intent["rows"], intent["model"], **made)


def _cache(intent: dict[str, Any]) -> dict[str, Any]:
    """The field of a batch that takes answers of before."""
    return {"cache": True} if intent["cache"] else {}


def _submission(intent: dict[str, Any]) -> dict[str, Any]:
    requests = [request(intent["asks"], row, intent["model"]) for row in intent["rows"]]
    return {
        **_cache(intent),
        "schema": "batch.submit/1",
        "endpoint": CHAT,
        "input": {"kind": "inline", "requests": requests},
    }


def _hook(url: str) -> dict[str, Any]:
    kinds = [f"{noun}.{status}" for noun in ("batch", "pipeline") for status in sorted(FINAL)]
    return {"name": "chaos", "url": url, "event_types": kinds}
