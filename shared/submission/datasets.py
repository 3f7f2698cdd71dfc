"""Pins a dataset when its batch is created: which objects it has, if the tenant may read them.

From then on the batch's rows are decided: another object, or another content, is not read.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec

from shared import ids
from shared.dataset.dataset import Dataset, Format, PinnedDataset, Source, format_of
from shared.dataset.key_pattern import fits, key_pattern
from shared.dataset.template import syntax_problem
from shared.errors import InvalidInputError, NotFoundError
from shared.input_places import InputPlaces, is_in
from shared.ledger.datasets import write_dataset
from shared.state import State
from shared.storage import Listed, Storage

#: Objects of one dataset: a listing of ten pages.
_MAX_OBJECTS = 10_000
#: Objects that a listing may pass, beside those that are wanted.
_MAX_LISTED = 100_000
_WILD = re.compile(r"[*?]")
_COLUMN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_MAX_SHOWN = 200


class Datasets:
    """Finds what datasets name. Raises InvalidInputError, whose `param` begins with `input`."""

    def __init__(self, state: State, storage: Storage, places: InputPlaces) -> None:
        self._state = state
        self._storage = storage
        self._places = places

    async def pinned(self, tenant: str, dataset: Dataset) -> PinnedDataset:
        """The dataset with its objects as they are now. Raises TransientError while S3 is away."""
        if (problem := syntax_problem(dataset.template, dataset.filter)) is not None:
            raise _invalid(problem.param, f"the template cannot be read: {problem.reason}")
        if dataset.file_id is not None:
            sources = [await self._file(tenant, dataset.file_id, dataset.format)]
        else:
            sources = await self._objects(tenant, dataset.objects or "", dataset.format)
        return PinnedDataset(msgspec.Raw(dataset.model_dump_json().encode()), sources)

    async def kept(self, batch_id: str, pinned: PinnedDataset) -> dict[str, Any]:
        """Keep the dataset of a new batch; what is returned are fields of its manifest."""
        stored = await write_dataset(self._state, self._storage, batch_id, pinned)
        return {
            "input_file_id": ids.dataset_file_id(batch_id),
            "bucket": self._storage.bucket,
            "key": stored.key,
            "etag": stored.etag,
            "size": stored.size,
            "dataset": stored.key,
        }

    async def _file(self, tenant: str, file_id: str, format_: Format | None) -> Source:
        try:
            file = await self._state.files.get(tenant, file_id)
        except NotFoundError as error:
            raise _invalid("file_id", str(error)) from error
        if file.has_expired:
            raise _invalid("file_id", f"No such File object: {file_id}")
        if file.purpose not in ("batch", "user_data", "batch_output"):
            raise _invalid("file_id", f"the file's purpose is '{file.purpose}', not 'batch'")
        format_ = format_ or format_of(file.filename)
        if format_ is None:
            raise _unknown_format("file_id", file.filename)
        return Source(
            file.id, file.bucket, file.key, file.etag, file.bytes, format_, start=file.start
        )

    async def _objects(self, tenant: str, url: str, format_: Format | None) -> list[Source]:
        bucket, _, key = url.removeprefix("s3://").partition("/")
        prefix = _WILD.split(key, maxsplit=1)[0]
        places = self._places.of(tenant)
        if not is_in(bucket, prefix, places):
            raise _invalid("objects", f"only objects under {', '.join(places)} may be read")
        try:
            if prefix == key and not key.endswith("/"):
                found = await self._storage.stat(key, bucket=bucket)
                listed = [Listed(found.key, found.etag, found.size, 0.0)]
            else:
                listed = await self._listed(bucket, prefix, key)
        except NotFoundError as error:
            raise _invalid("objects", str(error).rstrip(".")) from error
        if not listed:
            raise _invalid("objects", f"there is no object {_shown(url)}")
        return [_source(bucket, one, prefix, format_) for one in listed]

    async def _listed(self, bucket: str, prefix: str, key: str) -> list[Listed]:
        wanted, found, seen = key_pattern(key), list[Listed](), 0
        async for page in self._storage.pages(prefix, bucket=bucket):
            seen += len(page)
            found += [
                one
                for one in page
                if one.size and _is_data(one.key, prefix) and fits(one.key, wanted)
            ]
            if len(found) > _MAX_OBJECTS or seen > _MAX_LISTED:
                text = f"more than {_MAX_OBJECTS} objects, the limit of one dataset"
                raise _invalid("objects", f"{_shown(f's3://{bucket}/{key}')} has {text}")
        return found


def _is_data(key: str, prefix: str) -> bool:
    """Whether it is none of the markers that engines leave beside data, as `_SUCCESS`."""
    folder = prefix.rpartition("/")[0]
    names = key.removeprefix(f"{folder}/").split("/")
    return not any(name.startswith(("_", ".")) for name in names)


def _source(bucket: str, one: Listed, prefix: str, format_: Format | None) -> Source:
    format_ = format_ or format_of(one.key)
    if format_ is None:
        raise _unknown_format("objects", one.key)
    columns = dict(_columns(one.key, prefix))
    url = f"s3://{bucket}/{one.key}"
    return Source(url, bucket, one.key, one.etag, one.size, format_, columns=columns)


def _columns(key: str, prefix: str) -> Iterator[tuple[str, str]]:
    """What the folders below the dataset's own name, as `lang=en/`."""
    base = prefix.rpartition("/")[0]
    for folder in key.removeprefix(base).split("/")[:-1]:
        if (named := _COLUMN.fullmatch(folder)) is not None:
            yield named[1], unquote(named[2])


def _unknown_format(param: str, name: str) -> InvalidInputError:
    text = f"the name {_shown(name)} does not say what it is. Set 'input.format'"
    return _invalid(param, text)


def _invalid(param: str, text: str) -> InvalidInputError:
    param = f"input.{param}"
    return InvalidInputError(f"Invalid '{param}': {text}.", param=param, code="invalid_value")


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
