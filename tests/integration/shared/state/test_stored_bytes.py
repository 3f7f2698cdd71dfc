"""What a tenant has stored is what its files and pending uploads have, whatever happens."""

import secrets
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.errors import NotFoundError
from shared.state import FileRecord, PartRecord, State, UploadRecord
from shared.state.files import StoredBytesError

_LIMIT = 100
_NAMES = st.integers(0, 2)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("keep"), _NAMES, st.integers(0, 60)),
        st.tuples(st.just("create"), _NAMES, st.integers(0, 60)),
        st.tuples(st.just("delete"), _NAMES, st.just(0)),
        st.tuples(st.just("part"), _NAMES, st.integers(1, 60)),
        st.tuples(st.just("complete"), _NAMES, st.just(0)),
        st.tuples(st.just("cancel"), _NAMES, st.just(0)),
    ),
    max_size=30,
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=_STEPS)
async def test_the_count_is_the_sum_and_no_limit_is_exceeded(
    steps: list[tuple[str, int, int]], state: State
) -> None:
    account = Account(state)
    for number in range(3):
        await account.begin(number)

    for step, number, size in steps:
        await getattr(account, step)(number, size)

        assert await state.files.stored_bytes(account.tenant) == account.stored


class Account:
    """What a tenant should have stored, and the ways to change it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.tenant = f"t{secrets.token_hex(4)}"
        self._files: dict[str, int] = {}
        self._parts: dict[str, int] = {}

    @property
    def stored(self) -> int:
        return sum(self._files.values()) + sum(self._parts.values())

    async def begin(self, number: int) -> None:
        now = int(time.time())
        upload = UploadRecord(
            id=self._upload(number),
            tenant=self.tenant,
            bytes=99,
            created_at=now,
            expires_at=now + 600,
            filename="a.jsonl",
            purpose="batch",
        )
        await self._state.uploads.create(upload)

    async def keep(self, number: int, size: int) -> None:
        """An uploaded file."""
        file = _file(self.tenant, self._file(number), size)
        await self._state.files.reserve(file.key, seconds=60)
        if file.id not in self._files and self.stored + size > _LIMIT:
            with pytest.raises(StoredBytesError) as refused:
                await self._state.files.keep(file, max_bytes=_LIMIT)
            assert refused.value.used == self.stored
            return
        assert await self._state.files.keep(file, max_bytes=_LIMIT)
        self._files.setdefault(file.id, size)

    async def create(self, number: int, size: int) -> None:
        """A result, which is never refused."""
        await self._state.files.create(_file(self.tenant, self._file(number), size))
        self._files.setdefault(self._file(number), size)

    async def delete(self, number: int, _: int) -> None:
        with suppress(NotFoundError):
            await self._state.files.delete(self.tenant, self._file(number))
        self._files.pop(self._file(number), None)

    async def part(self, number: int, size: int) -> None:
        upload = self._upload(number)
        outcome = await self._state.uploads.add_part(
            upload,
            PartRecord(f"part_{secrets.token_hex(4)}", "key", "etag", size),
            max_bytes=10_000,
            max_parts=99,
            tenant_bytes=_LIMIT,
        )
        if outcome == "ok":
            assert self.stored + size <= _LIMIT
            self._parts[upload] = self._parts.get(upload, 0) + size
        elif outcome == "too_much":
            assert self.stored + size > _LIMIT

    async def complete(self, number: int, _: int) -> None:
        upload = self._upload(number)
        file = _file(self.tenant, f"file-of-{upload}", self._parts.get(upload, 0))
        await self._state.files.reserve(file.key, seconds=60)
        is_pending = (await self._state.uploads.get(self.tenant, upload)).status == "pending"
        assert await self._state.uploads.complete(upload, file, "print") != "swept"
        if is_pending:
            self._files[file.id] = self._parts.pop(upload, 0)

    async def cancel(self, number: int, _: int) -> None:
        if await self._state.uploads.cancel(self._upload(number)) == "cancelled":
            self._parts.pop(self._upload(number), None)

    def _file(self, number: int) -> str:
        return f"file-{self.tenant}-{number}"

    def _upload(self, number: int) -> str:
        return f"upload_{self.tenant}_{number}"


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({}, 10),
        ({"owned": False, "key": "packs/20261122/1.jsonl"}, 10),
        # Of the tenant itself, or of somebody who lets it read it.
        ({"owned": False, "key": "inbox/acme/a.jsonl"}, 0),
    ],
)
async def test_what_lies_in_a_place_of_the_tenant_does_not_count(
    changes: dict[str, Any], counted: int, state: State
) -> None:
    await state.files.create(_file("acme", "file-1", 10)._replace(**changes))

    assert await state.files.stored_bytes("acme") == counted
    await state.files.delete("acme", "file-1")
    assert await state.files.stored_bytes("acme") == 0


def _file(tenant: str, file_id: str, size: int) -> FileRecord:
    return FileRecord(
        id=file_id,
        tenant=tenant,
        bytes=size,
        created_at=int(time.time()),
        expires_at=None,
        filename="a.jsonl",
        purpose="batch",
        bucket="b",
        key=f"files/{tenant}/{file_id}",
        etag="e",
    )
