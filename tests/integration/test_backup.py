"""Backup and restore as docs/operations.md has them: a fleet at work is copied to fresh servers."""

import io
import secrets
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from redis import Redis

from tests.conftest import minio_client
from tests.contract.conftest import (
    MODEL,
    Caller,
    calling,
    rows,
    running_yard,
    yard_on,
)
from tests.contract.engine import WAIT
from tests.eventually import wait_until
from tests.servers import S3, own_redis, some_s3

_BUCKET = f"backup-{secrets.token_hex(4)}"
_LANE = f"{MODEL}@cpu"
_TEXTS = ("one", "two", WAIT, "four")


@pytest.fixture
def fresh_s3(s3: S3, tmp_path: Path) -> Iterator[S3]:
    """A server that has never seen the bucket."""
    with some_s3(tmp_path / "fresh") as fresh:
        if fresh.endpoint == s3.endpoint:
            pytest.skip("NOT TESTED: TEST_S3_ENDPOINT names one server, and this needs two.")
        yield fresh


def test_a_fleet_that_was_copied_at_work_goes_on_from_its_copies(
    tmp_path: Path, amqp_url: str, s3: S3, fresh_s3: S3
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    with (
        own_redis(first) as redis,
        running_yard(first, redis.url, amqp_url, s3, s3_bucket=_BUCKET) as yard,
        contextmanager(calling)(yard, "acme") as acme,
    ):
        done = acme.run(rows("one", "two", "three"))
        under_way = _half_done(acme)
        # Under way in the copy of Redis, and done in that of S3, which is taken later.
        between = _half_done(acme)
        _copy_redis(redis.url, first / "redis", second / "redis")
        yard.engine.release(between["id"])
        between = acme.until(between["id"], "completed")
        kept = {batch["id"]: _results(acme, batch) for batch in (done, between)}
        _copy_bucket(s3, fresh_s3)
        parts = yard.on_state(lambda state: state.slices.parts(under_way["id"]))

    with (
        own_redis(second) as redis,
        yard_on(second, redis.url, amqp_url, fresh_s3, s3_bucket=_BUCKET) as yard,
        OpenAI(api_key=acme.key, base_url=f"{yard.url}/v1", max_retries=0) as openai,
        httpx.Client(base_url=yard.url, headers=acme.http.headers) as http,
    ):
        restored = Caller(yard, acme.tenant, acme.key, openai, http)
        # What the dispatcher does when it hears that Ray does not know the job. Here is no Ray.
        yard.on_state(lambda state: state.claims.reap(_LANE, all_claims=True))
        for batch in (between, under_way):
            yard.engine.release(batch["id"])
        ended = {
            batch["id"]: restored.until(batch["id"], "completed")
            for batch in (done, between, under_way)
        }
        found = {batch_id: _results(restored, batch) for batch_id, batch in ended.items()}
        listed = {batch.id for batch in openai.batches.list()}
        again = yard.on_state(lambda state: state.slices.epochs(under_way["id"]))

    assert set(ended) == listed
    assert done == ended[done["id"]]
    assert [text.upper() for text in _TEXTS] == found.pop(under_way["id"])
    assert kept == found
    assert [0] == list(parts)
    assert {0: 1, 1: 2} == again


def _half_done(caller: Caller) -> dict[str, Any]:
    """A batch of two slices, of which one is committed and the other waits in the engine."""
    batch = caller.create(rows(*_TEXTS))
    wait_until(lambda: caller.batch(batch["id"])["request_counts"]["completed"] == len(_TEXTS) // 2)
    return batch


def _results(caller: Caller, batch: dict[str, Any]) -> list[str]:
    return [
        line["response"]["body"]["choices"][0]["message"]["content"]
        for line in caller.lines(batch["output_file_id"])
    ]


def _copy_redis(url: str, source: Path, target: Path) -> None:
    """The log of a server that goes on: no file of it is replaced meanwhile."""
    with Redis.from_url(url, decode_responses=True) as redis:
        redis.config_set("auto-aof-rewrite-percentage", 0)
        wait_until(lambda: redis.info("persistence")["aof_rewrite_in_progress"] == 0)
        shutil.copytree(source / "appendonlydir", target / "appendonlydir")
        redis.config_set("auto-aof-rewrite-percentage", 100)


def _copy_bucket(source: S3, target: S3) -> None:
    """As tools do that know nothing but S3: each object is read and put."""
    old, new = minio_client(source), minio_client(target)
    new.make_bucket(_BUCKET)
    for found in old.list_objects(_BUCKET, recursive=True):
        answer = old.get_object(_BUCKET, found.object_name)
        with closing(answer):
            body = answer.read()
        new.put_object(_BUCKET, found.object_name, io.BytesIO(body), len(body))
