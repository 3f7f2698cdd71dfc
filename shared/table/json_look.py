"""A look at the values of a column that came as JSON: whether they can have a type. Pure."""

from collections.abc import Sequence
from typing import Any

#: An object that has more fields in all its rows is a map: each of them would be a column.
_MAX_FIELDS = 200
#: Integers beyond it are not all among the fractions.
_EXACT = 2**53

_Path = tuple[str | None, ...]


class JsonLook:
    """What was seen of a column so far."""

    def __init__(self) -> None:
        self._fields = set[_Path]()
        self._fractions = set[_Path]()
        self._long = set[_Path]()

    def has_types(self, values: Sequence[Any]) -> bool:
        """Whether these values, with those before, can be columns of their own types.

        They cannot if they are maps, or if the same place has fractions and long integers: these
        would be rounded.
        """
        self._look_at_all(values, ())
        return len(self._fields) <= _MAX_FIELDS and not self._fractions & self._long

    def _look_at_all(self, values: Sequence[Any], path: _Path) -> None:
        kinds = set(map(type, values))
        if float in kinds:
            self._fractions.add(path)
        if int in kinds and any(type(one) is int and abs(one) > _EXACT for one in values):
            self._long.add(path)
        if not kinds & {dict, list}:
            return
        for one in values:
            if isinstance(one, list):
                self._look_at_all(one, (*path, None))
            elif isinstance(one, dict):
                self._look_at_fields(one, path)

    def _look_at_fields(self, value: dict[str, Any], path: _Path) -> None:
        for name, one in value.items():
            if len(self._fields) > _MAX_FIELDS:
                return
            self._fields.add(place := (*path, name))
            self._look_at_all([one], place)
