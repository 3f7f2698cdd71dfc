import asyncio
import gc
import hashlib
import http.server
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from email.message import Message
from typing import ClassVar

import pytest

from cli.servers import free_port
from shared.errors import NotFoundError, SetupError, TransientError
from shared.storage import (
    ChangedError,
    LoginRefusedError,
    ReadBytes,
    Storage,
    StorageRefusedError,
)
from tests.conftest import a_bucket, minio_client
from tests.eventually import eventually
from tests.proxy import proxied
from tests.servers import S3

_MIB = 1024 * 1024


async def test_of_many_creations_of_one_key_the_first_stays(storage: Storage) -> None:
    bodies = [b"body %d" % number for number in range(16)]

    for race in range(5):
        won = await asyncio.gather(*(storage.create(f"race-{race}", body) for body in bodies))
        assert won.count(True) == 1
        assert await storage.get(f"race-{race}") == bodies[won.index(True)]


async def test_a_put_replaces_and_a_create_does_not(storage: Storage) -> None:
    await storage.put("key", b"first")
    await storage.put("key", b"second")

    assert not await storage.create("key", b"third")
    assert await storage.get("key") == b"second"


async def test_what_is_put_once_stays(storage: Storage) -> None:
    first = await storage.put_once("key", b"first")

    assert first == await storage.stat("key")
    # As of a call whose answer was lost.
    assert await storage.put_once("key", b"first") == first
    assert await storage.put_once("key", b"other") is None
    assert await storage.get("key") == b"first"


async def test_an_object_with_a_label_is_read_back_with_it(storage: Storage) -> None:
    body = _noise(5 * _MIB)

    stored = await storage.put_once("key", body, label="a label")

    assert stored == await storage.stat("key")
    assert await storage.get("key") == body
    assert await storage.label("key") == "a label"
    assert await storage.put_once("key", b"other", label="another") is None


async def test_only_a_body_whose_label_has_its_checksum_goes_without_another() -> None:
    with _fake_s3(status=200) as (endpoint, headers):
        storage = Storage(endpoint, "key", "secret", "bucket")

        await storage.put_once("key", b"body", label="its checksum")
        await storage.put_once("key", b"body")
        await storage.put("key", b"body")
    storage.close()

    hashed = hashlib.sha256(b"body").hexdigest()
    assert [one["x-amz-content-sha256"] for one in headers] == ["UNSIGNED-PAYLOAD", hashed, hashed]
    # The label is what speaks for the body.
    assert "x-amz-meta-label" in headers[0]["Authorization"]


async def test_a_removed_key_can_be_created_again(storage: Storage) -> None:
    await storage.create("key", b"first")
    await storage.remove(["key"])

    assert await storage.create("key", b"second")


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, None, b"0123456789"),
        (0, 1, b"0"),
        (0, 10, b"0123456789"),
        (3, 7, b"3456"),
        (3, None, b"3456789"),
        (9, 10, b"9"),
        (8, 99, b"89"),
        (4, 4, b""),
    ],
)
async def test_a_range_is_from_start_to_before_end(
    start: int, end: int | None, expected: bytes, storage: Storage
) -> None:
    await storage.put("key", b"0123456789")

    got = await storage.get("key", start=start, end=end)
    streamed = b"".join([chunk async for chunk in storage.stream("key", start=start, end=end)])

    assert got == expected
    assert streamed == expected


@pytest.mark.parametrize("size", [0, 1, 1000, 6 * _MIB, 8 * _MIB, 30 * _MIB])
async def test_an_upload_is_read_back_as_it_was_sent(size: int, storage: Storage) -> None:
    body = _noise(size)

    stored = await storage.upload("key", _chunks(body, 300_000))

    assert (stored.key, stored.size) == ("key", size)
    assert stored == await storage.stat("key")
    assert await storage.get("key", etag=stored.etag) == body
    assert await _streamed(storage, "key") == hashlib.sha256(body).digest()


async def test_an_upload_of_one_huge_chunk_arrives_whole(storage: Storage) -> None:
    body = _noise(20 * _MIB + 1)

    await storage.upload("key", _chunks(body, len(body)))

    assert await _streamed(storage, "key") == hashlib.sha256(body).digest()


@pytest.mark.parametrize("before", [0, 3 * _MIB, 9 * _MIB])
async def test_s3_copies_what_an_upload_has_of_objects_that_are_there(
    before: int, storage: Storage, s3: S3
) -> None:
    source = _noise(14 * _MIB)
    stored = await storage.upload("parts/ö", _chunks(source, _MIB))
    plain, small, end = _noise(before), _noise(2 * _MIB), _noise(1000)
    held = ReadBytes.at(source[_MIB : 13 * _MIB], stored.key, stored.etag, _MIB)

    async def chunks() -> AsyncIterator[bytes]:
        yield plain
        yield held
        yield ReadBytes.at(small, "gone", "e", 0)
        for _ in range(5):
            yield held
        yield end

    written = await storage.upload("key", chunks())

    assert written == await storage.stat("key")
    body = plain + held + small + 5 * held + end
    assert await _streamed(storage, "key") == hashlib.sha256(body).digest()
    assert _open_uploads(s3, storage.bucket) == []


async def test_what_s3_copies_is_not_sent(storage: Storage) -> None:
    source = _noise(9 * _MIB)
    stored = await storage.put("parts/0", source)

    async def chunks() -> AsyncIterator[bytes]:
        yield ReadBytes.at(bytes(len(source)), stored.key, stored.etag, 0)

    await storage.upload("key", chunks())

    assert await storage.get("key") == source


async def test_an_upload_of_an_object_that_is_gone_leaves_nothing(storage: Storage, s3: S3) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for number in range(7):
            yield ReadBytes.at(_noise(9 * _MIB), f"parts/{number}", "e", 0)

    with pytest.raises(NotFoundError):
        await storage.upload("key", chunks())

    assert await storage.keys("") == []
    assert _open_uploads(s3, storage.bucket) == []


async def test_an_upload_replaces_what_is_there(storage: Storage) -> None:
    await storage.put("key", b"old")

    await storage.upload("key", _chunks(b"new", 1))

    assert await storage.get("key") == b"new"


@pytest.mark.parametrize("size", [0, 1000, 9 * _MIB, 30 * _MIB])
async def test_a_source_that_raises_leaves_nothing_behind(
    size: int, storage: Storage, s3: S3
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        async for chunk in _chunks(_noise(size), _MIB):
            yield chunk
        raise LookupError("the client went away")

    with pytest.raises(LookupError):
        await storage.upload("key", broken())

    assert await storage.keys("") == []
    assert _open_uploads(s3, storage.bucket) == []


async def test_a_cancelled_upload_leaves_nothing_behind(storage: Storage, s3: S3) -> None:
    sent = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        async for chunk in _chunks(_noise(20 * _MIB), _MIB):
            yield chunk
        sent.set()
        await asyncio.Event().wait()

    uploading = asyncio.create_task(storage.upload("key", endless()))
    await sent.wait()
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading

    assert await storage.keys("") == []
    assert _open_uploads(s3, storage.bucket) == []


async def test_an_upload_that_is_cancelled_as_it_begins_leaves_nothing_behind(
    storage: Storage, s3: S3
) -> None:
    async with proxied(s3.endpoint) as proxy:
        through = Storage(proxy.url, s3.access_key, s3.secret_key, storage.bucket)
        proxy.may_answer.clear()
        uploading = asyncio.create_task(through.upload("key", _chunks(_noise(20 * _MIB), _MIB)))
        await eventually(lambda: len(_open_uploads(s3, storage.bucket)) == 1)
        uploading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploading
        proxy.may_answer.set()

        await eventually(lambda: _open_uploads(s3, storage.bucket) == [])
        through.close()


async def test_slow_uploads_do_not_stand_in_the_way_of_others(storage: Storage) -> None:
    go_on = asyncio.Event()

    async def slow(number: int) -> AsyncIterator[bytes]:
        yield b"%d" % number * _MIB
        await go_on.wait()
        yield b"end"

    uploads = [
        asyncio.create_task(storage.upload(f"slow-{number}", slow(number))) for number in range(40)
    ]
    async with asyncio.timeout(30):
        await storage.upload("quick", _chunks(b"abc", 1))
        assert await storage.get("quick") == b"abc"
        # The event loop's own threads, which resolve names, are free as well.
        await asyncio.to_thread(time.monotonic)
    go_on.set()
    async with asyncio.timeout(30):
        stored = await asyncio.gather(*uploads)

    assert {one.size for one in stored[:10]} == {_MIB + 3}


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [1],
        [0, 3, 0],
        [6 * _MIB, 0, 5 * _MIB, 7],
        [6 * _MIB],
        [6 * _MIB] * 5,
        [5 * _MIB - 1, 6 * _MIB],
        [1, 2, 9 * _MIB, 3],
    ],
)
async def test_objects_are_composed_in_their_order(
    sizes: list[int], storage: Storage, s3: S3
) -> None:
    bodies = [bytes([number]) * (size > 0) + _noise(size)[1:] for number, size in enumerate(sizes)]
    sources = [
        await storage.upload(f"parts/{number} ö", _chunks(body, _MIB))
        for number, body in enumerate(bodies)
    ]

    stored = await storage.compose("whole", sources)

    assert stored == await storage.stat("whole")
    assert await storage.get("whole", etag=stored.etag) == b"".join(bodies)
    assert _open_uploads(s3, storage.bucket) == []


@pytest.mark.parametrize("size", [100, 6 * _MIB])
async def test_a_composition_whose_source_is_gone_leaves_nothing(
    size: int, storage: Storage, s3: S3
) -> None:
    sources = [await storage.put(f"parts/{number}", _noise(size)) for number in range(7)]
    await storage.remove(["parts/2"])

    with pytest.raises(NotFoundError):
        await storage.compose("whole", sources)

    assert "whole" not in await storage.keys("")
    assert _open_uploads(s3, storage.bucket) == []


async def test_what_dead_uploads_sent_is_dropped_and_living_ones_go_on(
    storage: Storage, s3: S3
) -> None:
    client = minio_client(s3)
    for name in ("dead", "dead", "also dead ö"):
        upload = client._create_multipart_upload(storage.bucket, name, {})  # noqa: SLF001  # as an upload that died
        client._upload_part(storage.bucket, name, b"x", None, upload, 1)  # noqa: SLF001  # as above

    assert await storage.abort_older_than(3600) == 0
    assert len(_open_uploads(s3, storage.bucket)) == 3
    assert await storage.abort_older_than(-3600) == 3
    assert _open_uploads(s3, storage.bucket) == []


async def test_only_old_keys_are_old(storage: Storage) -> None:
    await storage.put("uploads/a", b"")
    await storage.put("files/a", b"")

    assert await storage.keys_older_than(3600, "uploads/") == []
    assert await storage.keys_older_than(-3600, "uploads/") == ["uploads/a"]


async def test_a_stream_comes_in_pieces(storage: Storage) -> None:
    await storage.upload("key", _chunks(_noise(5 * _MIB), _MIB))

    sizes = [len(chunk) async for chunk in storage.stream("key")]

    assert sum(sizes) == 5 * _MIB
    assert max(sizes) <= _MIB


async def test_a_stream_that_nobody_reads_on_gives_its_connection_back(storage: Storage) -> None:
    await storage.upload("key", _chunks(_noise(5 * _MIB), _MIB))

    for _ in range(60):
        stream = storage.stream("key")
        async for _chunk in stream:
            break
        await stream.aclose()

    assert await storage.get("key", end=1)


async def test_an_object_that_changed_is_refused(storage: Storage) -> None:
    first = await storage.put("key", b"first")
    second = await storage.put("key", b"other")

    assert await storage.get("key", etag=second.etag) == b"other"
    with pytest.raises(ChangedError):
        await storage.get("key", etag=first.etag)
    with pytest.raises(ChangedError):
        await anext(aiter(storage.stream("key", etag=first.etag)))


@pytest.mark.parametrize("bucket", [None, "no-such-bucket"])
async def test_what_is_missing_is_not_found(bucket: str | None, storage: Storage) -> None:
    with pytest.raises(NotFoundError):
        await storage.get("none", bucket=bucket)
    with pytest.raises(NotFoundError):
        await storage.stat("none", bucket=bucket)
    with pytest.raises(NotFoundError):
        await anext(aiter(storage.stream("none", bucket=bucket)))


async def test_a_missing_version_is_not_found_and_named(
    storage: Storage,
) -> None:
    await storage.put("versions/a", b"a")

    with pytest.raises(NotFoundError, match="no version 'nosuchversion' of object versions/a"):
        await storage.get("versions/a", version_id="nosuchversion")


@pytest.mark.parametrize("key", [" ", "a/../b", "ü" * 1000])
async def test_what_can_have_no_such_name_is_not_found(key: str, storage: Storage) -> None:
    for call in (storage.get(key), storage.stat(key), anext(aiter(storage.stream(key)))):
        with pytest.raises(NotFoundError):
            await call


async def test_what_s3_refuses_for_good_is_our_own_error_with_its_code(storage: Storage) -> None:
    with pytest.raises(StorageRefusedError) as refusal:
        await storage.put("ü" * 1000, b"")

    # The words of Ceph, AWS and MinIO.
    assert refusal.value.code in {"InvalidObjectName", "KeyTooLongError", "XMinioInvalidObjectName"}
    assert refusal.value.code in str(refusal.value)


async def test_calls_wait_for_a_login_that_s3_does_not_take(storage: Storage, s3: S3) -> None:
    stranger = Storage(s3.endpoint, s3.access_key, "wrong", storage.bucket, attempts=1)

    for call in (stranger.put("key", b""), stranger.get("key"), stranger.check_reads()):
        with pytest.raises(LoginRefusedError, match="SignatureDoesNotMatch"):
            await call
    with pytest.raises(SetupError, match="BATCHYARD_S3_SECRET_KEY"):
        await stranger.prepare()
    stranger.close()


async def test_another_bucket_can_be_read(storage: Storage, s3: S3) -> None:
    async with a_bucket(s3) as other:
        stored = await other.put("key", b"theirs")

        got = await storage.get("key", bucket=other.bucket, etag=stored.etag)
        stat = await storage.stat("key", bucket=other.bucket)

    assert got == b"theirs"
    assert stat == stored


async def test_keys_are_those_with_the_prefix(storage: Storage) -> None:
    for key in ("a/1", "a/2", "ab/1", "b/a/1", "a/odd +%&=ü.jsonl"):
        await storage.put(key, b"")

    assert sorted(await storage.keys("a/")) == ["a/1", "a/2", "a/odd +%&=ü.jsonl"]
    assert await storage.keys("none/") == []
    await storage.remove(["a/odd +%&=ü.jsonl"])
    assert sorted(await storage.keys("a/")) == ["a/1", "a/2"]


async def test_removing_is_repeatable(storage: Storage) -> None:
    await storage.put("key", b"")

    await storage.remove(["key", "none"])
    await storage.remove(["key", "none"])
    await storage.remove([])

    assert await storage.keys("") == []


async def test_preparing_is_repeatable_and_leaves_nothing(storage: Storage) -> None:
    await asyncio.gather(*(storage.prepare() for _ in range(3)))

    assert await storage.keys("") == []


async def test_a_server_that_ignores_create_only_puts_is_refused() -> None:
    with _fake_s3(status=200) as (endpoint, _):
        storage = Storage(endpoint, "key", "secret", "bucket")

        with pytest.raises(SetupError, match="create-only"):
            await storage.prepare()
    storage.close()


@pytest.mark.parametrize("status", [500, 503])
async def test_a_server_that_is_broken_is_transient(status: int) -> None:
    with _fake_s3(status=status) as (endpoint, _):
        storage = Storage(endpoint, "key", "secret", "bucket")
        calls = [
            storage.get("key"),
            storage.stat("key"),
            storage.create("key", b""),
            storage.upload("key", _chunks(b"abc", 1)),
        ]

        errors = await asyncio.gather(*calls, return_exceptions=True)

    assert [type(error) for error in errors] == [TransientError] * len(calls)
    storage.close()


async def test_a_server_that_is_down_is_transient_within_seconds() -> None:
    storage = Storage(f"http://127.0.0.1:{free_port()}", "key", "secret", "bucket")
    calls = [
        storage.ping(),
        storage.get("key"),
        storage.stat("key"),
        storage.put("key", b""),
        storage.create("key", b""),
        storage.keys(""),
        storage.remove(["key"]),
        storage.upload("key", _chunks(_noise(20 * _MIB), _MIB)),
    ]
    started = time.monotonic()

    errors = await asyncio.gather(*calls, return_exceptions=True)

    assert [type(error) for error in errors] == [TransientError] * len(calls)
    assert time.monotonic() - started < 20
    storage.close()


def _noise(size: int) -> bytes:
    block = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(4096))
    return (block * (size // len(block) + 1))[:size]


async def _chunks(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]
        await asyncio.sleep(0)


async def _streamed(storage: Storage, key: str) -> bytes:
    digest = hashlib.sha256()
    async for chunk in storage.stream(key):
        digest.update(chunk)
    return digest.digest()


def _open_uploads(s3: S3, bucket: str) -> list[str]:
    found = minio_client(s3)._list_multipart_uploads(bucket)  # noqa: SLF001  # the client shows them nowhere else
    return [upload.object_name or "" for upload in found.uploads]


async def test_an_answer_that_nobody_waits_for_any_more_keeps_no_connection() -> None:
    asked, may_answer, closed = (asyncio.Event() for _ in range(3))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await may_answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\netag: x\r\n\r\nsome")
        await reader.read()
        closed.set()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        storage = Storage(address, "key", "secret", "bucket")
        # What is kept is found by itself only if the collector runs.
        gc.disable()
        try:
            reading = asyncio.create_task(anext(storage.stream("key")))
            await asked.wait()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            may_answer.set()
            await asyncio.wait_for(closed.wait(), 30)
        finally:
            gc.enable()
            storage.close()


class _Answering(http.server.BaseHTTPRequestHandler):
    """Answers everything with one status, as a server that knows nothing of conditions does."""

    status = 200
    headers_seen: ClassVar[list[Message]]

    def _answer(self) -> None:
        self.headers_seen.append(self.headers)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b"" if self.command == "HEAD" else b"<html>no XML of S3's</html>"
        if self.command == "POST":
            body = b'<?xml version="1.0"?><DeleteResult></DeleteResult>'
        self.send_response(self.status)
        self.send_header("ETag", '"0"')
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815  # names that the base class looks for

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def _fake_s3(*, status: int) -> Iterator[tuple[str, list[Message]]]:
    """Its address, and the headers of the calls that it gets."""
    seen: list[Message] = []
    handler = type("_Handler", (_Answering,), {"status": status, "headers_seen": seen})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()
