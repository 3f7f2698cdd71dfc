"""Where the images, sounds and videos of a request may come from, and how many. Pure.

vLLM would download whatever URL a request names, from inside the fleet's network. So the engine
takes `data:` URLs alone. A lane job makes them of objects in the tenant's own places in S3, and of
URLs at domains that the operator names; for a live call, a gateway does.
"""

import base64
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from shared.input_places import is_in
from shared.openai.bodies import Refusal
from shared.openai.endpoints import CONTENTS

S3_SCHEME = "s3://"
#: Fields of a part that hold a URL, or an object with one.
_URLS = frozenset({"audio_url", "file_url", "image_url", "source", "video_url"})
#: The field beside a request's others that holds the URL of a sound to be heard.
_SOUND = "file_url"
#: Fields of a part that hold an object with base64.
_DATA = frozenset({"input_audio", "source"})
#: Parts that hold the engine's own objects instead of media, and the name under which the engine
#: keeps a part for whoever asks for that name.
_CLOSED = frozenset(
    {"audio_embeds", "image_embeds", "image_pil", "prompt_embeds", "uuid", "video_embeds"}
)
#: Parts of a conversation that hold no media, whatever their fields are called.
_CALLS = frozenset({"arguments", "tool_calls"})
#: Characters of a place that a refusal names, which has a client's own names in it.
_MAX_PLACE = 200
_CONVERSATIONS, _CONTENTS = ("messages", "input"), sorted(CONTENTS)


class MediaLimits(BaseModel):
    """The most that the media of one request may be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    items: int = Field(default=64, ge=0)
    #: Of all its media together, as files.
    bytes: int = Field(default=32 * 1024 * 1024, ge=0)
    #: Of an image, and of a frame of a video.
    pixels: int = Field(default=64 * 1024 * 1024, ge=1)
    #: Of a video.
    frames: int = Field(default=36_000, ge=1)
    #: Of a sound or a video.
    seconds: int = Field(default=600, ge=1)


class MediaRules(BaseModel):
    """What the media of a model's requests may be; without anything, `data:` URLs."""

    model_config = ConfigDict(frozen=True)

    #: Hosts from which they are downloaded.
    domains: frozenset[str] = frozenset()
    #: Of the request's tenant: `s3://bucket/prefix/`.
    places: tuple[str, ...] = ()
    limits: MediaLimits = MediaLimits()


class Medium(NamedTuple):
    """An image, sound or video that a request names by a URL."""

    #: The field of the body, dotted.
    place: str
    url: str
    #: What has the URL, and under which name.
    holder: dict[str, Any]
    name: str

    @property
    def is_data(self) -> bool:
        """Whether it comes with the request."""
        return self.url[:5].lower() == "data:"

    def put(self, file: bytes) -> None:
        """Put the file into its place of the request, as the engine takes it."""
        # Neutral, because vLLM reads some media types in ways of their own.
        data = base64.b64encode(file).decode()
        self.holder[self.name] = f"data:application/octet-stream;base64,{data}"


def media_of(body: Mapping[str, Any]) -> Iterator[Medium]:
    """The media that a request names by URLs, wherever the engine would look for one."""
    yield from _sound(body)
    for place, name, value, holder in _fields(body):
        if name in _URLS and (medium := _medium(place, name, value, holder)) is not None:
            yield medium


def wanted_media(body: Mapping[str, Any]) -> tuple[Medium, ...]:
    """What a request names that does not come with it."""
    return tuple(medium for medium in media_of(body) if not medium.is_data)


def files_of(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """All media of a request, each as the name of its field and its URL, or its base64."""
    for medium in media_of(body):
        yield medium.place.rpartition(".")[2], medium.url
    for _, name, value, _ in _fields(body):
        if name in _DATA and isinstance(value, dict) and isinstance(value.get("data"), str):
            yield name, value["data"]


def media_refusal(
    body: Mapping[str, Any], rules: MediaRules, *, extra_fields: Collection[str] = ()
) -> Refusal | None:
    """Why the request's media may not be used; None if they may, or if there are none."""
    count = size = 0
    refusal = None
    for medium in _sound(body):
        count, size = 1, _bytes_in(medium.url) if medium.is_data else 0
        refusal = _from_elsewhere(medium, rules) or _too_much(_SOUND, count, size, rules.limits)
    # One look at a body: each row passes here in the process that all rows of an engine share.
    for place, name, value, holder in _fields(body):
        if (closed := _closed_part(place, name, value, extra_fields)) is not None:
            return closed
        if refusal is not None:
            continue
        if name in _URLS and (found := _medium(place, name, value, holder)) is not None:
            count += 1
            size += _bytes_in(found.url) if found.is_data else 0
            refusal = _from_elsewhere(found, rules)
        if name in _DATA and isinstance(value, dict) and isinstance(value.get("data"), str):
            count += 1
            size += len(value["data"]) * 3 // 4
        refusal = refusal or _too_much(place, count, size, rules.limits)
    return refusal


def may_come_from(url: str, rules: MediaRules) -> bool:
    """Whether media of this URL may be used."""
    if url[:5].lower() == "data:":
        return True
    if url.startswith(S3_SCHEME):
        bucket, key = bucket_and_key(url)
        return bool(key) and url.isprintable() and is_in(bucket, key, rules.places)
    # Two readers of a URL with such characters may find two hosts in it.
    if not url.isascii() or not url.isprintable() or set(url) & set("\\ @"):
        return False
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and host in rules.domains


def bucket_and_key(url: str) -> tuple[str, str]:
    """What an `s3://` URL names. The key stands in it as it is: nothing is decoded."""
    bucket, _, key = url.removeprefix(S3_SCHEME).partition("/")
    return bucket, key


def too_many_bytes(limits: MediaLimits) -> str:
    """What a request is told whose media are too large."""
    return (
        f"The media of this request have more than the {limits.bytes} bytes that the media of one "
        "request of this model may have together. Send fewer or smaller ones"
    )


def _sound(body: Mapping[str, Any]) -> Iterator[Medium]:
    if isinstance(url := body.get(_SOUND), str):
        yield Medium(_SOUND, url, cast("dict[str, Any]", body), _SOUND)


def _medium(place: str, name: str, value: Any, holder: dict[str, Any]) -> Medium | None:
    """What a field with one of the names of URLs names."""
    if isinstance(value, dict):
        return (
            Medium(place, value["url"], value, "url") if isinstance(value.get("url"), str) else None
        )
    if isinstance(value, str) and name != "source":
        return Medium(place, value, holder, name)
    return None


def _from_elsewhere(medium: Medium, rules: MediaRules) -> Refusal | None:
    if may_come_from(medium.url, rules):
        return None
    return Refusal(medium.place[:_MAX_PLACE], _where_from(rules))


def _closed_part(
    place: str, name: str, value: Any, extra_fields: Collection[str]
) -> Refusal | None:
    kind = value if name == "type" and isinstance(value, str) else name
    if kind not in _CLOSED or value is None or kind in extra_fields:
        return None
    return Refusal(
        place[:_MAX_PLACE],
        "Requests bring no parts in the engine's own form and choose no names in its cache. Leave "
        "it out",
    )


def _too_much(place: str, count: int, size: int, limits: MediaLimits) -> Refusal | None:
    if count > limits.items:
        return Refusal(
            place[:_MAX_PLACE],
            f"The request has more than the {limits.items} images, sounds and videos that one "
            "request of this model may have. Split the request",
        )
    if size > limits.bytes:
        return Refusal(place[:_MAX_PLACE], too_many_bytes(limits))
    return None


def _bytes_in(url: str) -> int:
    """Of the file in a `data:` URL, which is base64."""
    return (len(url) - url.find(",") - 1) * 3 // 4


def _fields(body: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Each field inside the request's conversation: its place, name, value and holder."""
    # What else stands beside a conversation is text for its template.
    names = _CONVERSATIONS if body.get("messages") else _CONTENTS
    given = ((name, body[name]) for name in names if name in body)
    # One iterator for each level, because a line may hold millions of values.
    levels = [_inside(name, value) for name, value in given if isinstance(value, list | dict)]
    while levels:
        if (found := next(levels[-1], None)) is None:
            levels.pop()
            continue
        place, name, value, holder = found
        if isinstance(name, str):
            yield place, name, value, holder
        is_call = name in _CALLS or (name == "input" and holder.get("type") == "tool_use")
        if isinstance(value, list | dict) and not is_call:
            levels.append(_inside(place, value))


def _inside(place: str, value: Any) -> Iterator[tuple[str, str | int, Any, Any]]:
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and {list, dict} & set(map(type, value)):
        # Others, such as a million tokens of a prompt, hold nothing.
        items = enumerate(value)
    return ((f"{place}.{name}", name, one, value) for name, one in items)


def _where_from(rules: MediaRules) -> str:
    if not rules.places and not rules.domains:
        return "Send the media along as a `data:` URL; nothing is downloaded here"
    ways = ["Send the media along as a `data:` URL"]
    if rules.places:
        ways.append(f"name an object as an `s3://` URL under {', '.join(rules.places)}")
    if rules.domains:
        ways.append(
            f"name them by http or https at one of this model's domains: "
            f"{', '.join(sorted(rules.domains))}"
        )
    return ", or ".join(ways)
