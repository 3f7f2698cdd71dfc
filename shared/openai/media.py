"""Where the images, sounds and videos of a request may come from. Pure.

vLLM downloads whatever URL a request names, from inside the fleet's network. So a request brings
its media along as `data:` URLs, except from domains that the operator names.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from shared.openai.bodies import Refusal

#: Fields of a part that hold a URL, or an object with one.
_URLS = frozenset({"audio_url", "file_url", "image_url", "video_url"})
#: Parts that hold the engine's own objects instead of media, and the name under which the engine
#: keeps a part for whoever asks for that name.
_CLOSED = frozenset(
    {"audio_embeds", "image_embeds", "image_pil", "prompt_embeds", "uuid", "video_embeds"}
)
#: Parts of a conversation that hold no media, whatever their fields are called.
_CALLS = frozenset({"arguments", "tool_calls"})
#: Characters of a place that a refusal names, which has a client's own names in it.
_MAX_PLACE = 200
_CONVERSATIONS = ("messages", "input")


def media_refusal(
    body: Mapping[str, Any], *, domains: Collection[str], extra_fields: Collection[str]
) -> Refusal | None:
    """Why the request's media may not be used; None if they may, or if there are none."""
    for place, name, value in _fields(body):
        kind = value if name == "type" and isinstance(value, str) else name
        if kind in _CLOSED:
            if value is not None and kind not in extra_fields:
                return Refusal(
                    place[:_MAX_PLACE],
                    "Requests bring no parts in the engine's own form and choose no names in its "
                    "cache. Leave it out",
                )
        elif name in _URLS:
            url = value.get("url") if isinstance(value, dict) else value
            if isinstance(url, str) and not may_come_from(url, domains):
                return Refusal(place[:_MAX_PLACE], _where_from(domains))
    return None


def may_come_from(url: str, domains: Collection[str]) -> bool:
    """Whether media of this URL may be used."""
    if url[:5].lower() == "data:":
        return True
    # Two readers of a URL with such characters may find two hosts in it.
    if not url.isascii() or not url.isprintable() or set(url) & set("\\ @"):
        return False
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and host in domains


def _fields(body: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """The place, the name and the value of each field inside the request's conversation."""
    # One iterator for each level, because a line may hold millions of values.
    levels = [_inside(name, body.get(name)) for name in _CONVERSATIONS]
    while levels:
        if (found := next(levels[-1], None)) is None:
            levels.pop()
            continue
        place, name, value = found
        if isinstance(name, str):
            yield place, name, value
        if isinstance(value, list | dict) and name not in _CALLS:
            levels.append(_inside(place, value))


def _inside(place: str, value: Any) -> Iterator[tuple[str, str | int, Any]]:
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return ((f"{place}.{name}", name, one) for name, one in items)


def _where_from(domains: Collection[str]) -> str:
    if not domains:
        return "Send the media along as a `data:` URL; this model downloads nothing"
    return (
        "Send the media along as a `data:` URL, or name one by http or https at one of this "
        f"model's domains: {', '.join(sorted(domains))}"
    )
