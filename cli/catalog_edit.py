"""Writes values into the text of a catalog, and leaves everything else in it as it is. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

#: How a comment begins that such values have above them.
_MARK = "# tuned: "


class NoPlaceError(Exception):
    """The text has no place of its own for a value: its entry is shared, or not there."""


class _Edit(NamedTuple):
    """What takes the place of a part of the text."""

    begin: int
    end: int
    text: str


def with_values(text: str, model: str, values: Mapping[tuple[str, ...], int], note: str) -> str:
    """The catalog with these values of the model, by their places in its entry, one or two deep.

    `note` becomes a comment above it. Raises NoPlaceError.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    entry = _value(_value(root, "models"), model)
    if not isinstance(entry, yaml.MappingNode):
        raise NoPlaceError(f"there is no entry `{model}` under `models`")
    edits = [*_edits(text, entry, values), _noted(text, root, model, note)]
    end = "\r\n" if "\r\n" in text else "\n"
    for edit in sorted(edits, reverse=True):
        text = text[: edit.begin] + edit.text.replace("\n", end) + text[edit.end :]
    return text


def _edits(
    text: str, entry: yaml.MappingNode, values: Mapping[tuple[str, ...], int]
) -> Iterator[_Edit]:
    new: dict[str, dict[str, int]] = {}
    for place, value in values.items():
        above, field = ("", *place)[-2:]
        known = _value(_value(entry, above) if above else entry, field)
        if known is None:
            new.setdefault(above, {})[field] = value
        else:
            yield _Edit(known.start_mark.index, known.end_mark.index, str(value))
    own = [f"{field}: {value}" for field, value in new.pop("", {}).items()]
    for above, fields in new.items():
        lines = [f"{field}: {value}" for field, value in fields.items()]
        if (inside := _value(entry, above)) is None:
            own.append(f"{above}: {{{', '.join(lines)}}}")
        else:
            yield _added(text, inside, lines)
    if own:
        yield _added(text, entry, own)


def _added(text: str, mapping: Any, lines: Sequence[str]) -> _Edit:
    """Fields more, before the others."""
    if not isinstance(mapping, yaml.MappingNode):
        raise NoPlaceError(f"what should get `{lines[0]}` is no mapping")
    if mapping.flow_style:
        at = mapping.start_mark.index + 1
        return _Edit(at, at, ", ".join(lines) + (", " if mapping.value else ""))
    first = mapping.value[0][0].start_mark
    at = first.index - first.column
    if text[at : first.index].strip():
        raise NoPlaceError(f"there is no line of its own for `{lines[0]}`")
    return _Edit(at, at, "".join(f"{' ' * first.column}{line}\n" for line in lines))


def _noted(text: str, root: Any, model: str, note: str) -> _Edit:
    """The comment above the model, in place of an older one."""
    mark = next(key.start_mark for key, _ in _value(root, "models").value if key.value == model)
    at = mark.index - mark.column
    before = text[:at].rsplit("\n", 2)
    end = at
    if len(before) > 1 and before[-2].strip().startswith(_MARK):
        at -= len(before[-2]) + 1
    return _Edit(at, end, f"{' ' * mark.column}{_MARK}{note}\n")


def _value(mapping: Any, key: str) -> Any:
    if not isinstance(mapping, yaml.MappingNode):
        return None
    return next((value for found, value in mapping.value if found.value == key), None)
