"""Which gateway a command speaks to: a named context of the config file, or the environment."""

import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shared.errors import InvalidInputError, NotFoundError

_CONFIG = "BATCHYARD_CONFIG"
_CONTEXT = "BATCHYARD_CONTEXT"
_URL, _KEY = "OPENAI_BASE_URL", "OPENAI_API_KEY"
#: The bits by which anybody but the owner could read or write the file.
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class Target:
    """A gateway, and the key for it, which is never printed."""

    name: str
    url: str
    key: str = field(repr=False)


@dataclass
class Contexts:
    """The config file's contents."""

    targets: dict[str, Target]
    current: str | None = None


def config_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Where contexts are kept."""
    if named := environment.get(_CONFIG):
        return Path(named)
    home = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "batchyard" / "contexts.json"


def read_contexts(file: Path) -> Contexts:
    """What the file holds. Raises InvalidInputError if it is damaged, or if others may read it."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read()
    except FileNotFoundError:
        return Contexts({})
    except OSError as error:
        raise InvalidInputError(f"{file}: {error.strerror}.") from error
    if mode & _OTHERS:
        raise InvalidInputError(
            f"{file} holds keys, and others may read it. Run: chmod 600 {file}; if they could read "
            "it for long, have the keys replaced."
        )
    try:
        held = json.loads(text)
        targets = {
            name: Target(
                name,
                checked_url(one["url"], f"{file}: the URL of {name}"),
                checked_key(one["key"], f"{file}: the key of {name}"),
            )
            for name, one in held["contexts"].items()
        }
        current = held["current"] if held["current"] in targets else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError(
            f"{file} is not a file of contexts. Move it away, and add your contexts again with "
            "`batchyard context add`."
        ) from error
    return Contexts(targets, current)


@contextmanager
def changed_contexts(file: Path) -> Iterator[Contexts]:
    """What the file holds, which is written at the end; others who change it wait meanwhile.

    Raises InvalidInputError as `read_contexts` does, and if nothing can be written there.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with file.with_name(f".{file.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            contexts = read_contexts(file)
            yield contexts
            _write(file, contexts)
    except OSError as error:
        raise InvalidInputError(f"{file} cannot be written: {error.strerror}.") from error


def _write(file: Path, contexts: Contexts) -> None:
    """Replace the file at once by one that only its owner can read."""
    held: dict[str, Any] = {
        "current": contexts.current,
        "contexts": {
            name: {"url": target.url, "key": target.key}
            for name, target in contexts.targets.items()
        },
    }
    # Made with mode 0600.
    descriptor, scratch = tempfile.mkstemp(dir=file.parent, prefix=".contexts-")
    try:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(json.dumps(held, indent=2) + "\n")
            opened.flush()
            os.fsync(opened.fileno())
        Path(scratch).replace(file)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def choose(name: str | None, environment: Mapping[str, str] = os.environ) -> Target:
    """The context that was asked for, else the environment's gateway, else the current context.

    Raises NotFoundError, and InvalidInputError if there is nothing to choose.
    """
    file = config_file(environment)
    if asked := name or environment.get(_CONTEXT):
        contexts = read_contexts(file)
        return find(contexts, asked)
    if url := environment.get(_URL):
        if not (key := environment.get(_KEY)):
            raise InvalidInputError(
                f"{_URL} is set, and {_KEY} is not. Set it to your key for {url}."
            )
        return Target(url, checked_url(url, _URL), checked_key(key, _KEY))
    contexts = read_contexts(file)
    if contexts.current is None:
        raise InvalidInputError(
            f"No gateway is named. Set {_URL} and {_KEY}, or add a context: "
            "batchyard context add NAME --url https://HOST/v1"
        )
    return contexts.targets[contexts.current]


def find(contexts: Contexts, name: str) -> Target:
    """The context of this name. Raises NotFoundError."""
    if name not in contexts.targets:
        known = ", ".join(sorted(contexts.targets)) or "none"
        raise NotFoundError(f"There is no context '{name}'. Known contexts: {known}.")
    return contexts.targets[name]


def checked_url(url: str, source: str) -> str:
    """A gateway's base URL without a slash at its end. Raises InvalidInputError."""
    if not _is_base_url(url):
        raise InvalidInputError(
            f"{source}: '{url.rpartition('@')[2]}' is not a base URL such as https://HOST/v1."
        )
    return url.rstrip("/")


def _is_base_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_plain = url.isprintable() and not set(url) & set("@?# ")
    return has_host and is_plain and url.startswith(("http://", "https://"))


def is_key(text: str) -> bool:
    """Whether a header can hold it. What is refused there is quoted, and so would be shown."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def checked_key(key: str, source: str) -> str:
    """The key without white space around it. Raises InvalidInputError, which does not show it."""
    found = key.strip()
    if not is_key(found):
        raise InvalidInputError(
            f"{source} is no key: a key is one word of letters, digits and signs of ASCII."
        )
    return found
