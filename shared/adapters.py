"""Tenants' own LoRA adapters, and what a model is called with one of them. Pure.

The name is that of the model, a colon, and the id of the file with the adapter.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, TypeVar

#: Of the files that hold adapters.
PURPOSE = "adapter"
_NAME = re.compile(r"(.+):(file-[A-Za-z0-9]+)")

Known = TypeVar("Known")


class AdapterName(NamedTuple):
    """What a request has as its `model` that is for an adapter."""

    model: str
    file_id: str

    def __str__(self) -> str:
        return f"{self.model}:{self.file_id}"


def adapter_named(name: str) -> AdapterName | None:
    """What the name stands for; None if it is not that of a tenant's adapter."""
    found = _NAME.fullmatch(name)
    return AdapterName(found[1], found[2]) if found else None


class WithAdapters(Mapping[str, Known]):
    """What is known of models, under the names of a tenant's adapters as well."""

    def __init__(
        self, known: Mapping[str, Known], takers: Collection[str], file_ids: Collection[str]
    ) -> None:
        """`takers` are the models that take adapters, and `file_ids` those of the tenant's."""
        self._known = known
        self._takers = [name for name in takers if name in known]
        self._file_ids = file_ids

    def __getitem__(self, name: str) -> Known:
        if name in self._known:
            return self._known[name]
        own = adapter_named(name)
        if own is None or own.model not in self._takers or own.file_id not in self._file_ids:
            raise KeyError(name)
        return self._known[own.model]

    def __iter__(self) -> Iterator[str]:
        yield from self._known
        for model in self._takers:
            for file_id in self._file_ids:
                yield str(AdapterName(model, file_id))

    def __len__(self) -> int:
        return len(self._known) + len(self._takers) * len(self._file_ids)
