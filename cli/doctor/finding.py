"""What `doctor` finds, and the thresholds at which it complains. Pure."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    #: It could not be looked at; `do` says what would make it possible.
    SKIPPED = "skipped"


class Finding(NamedTuple):
    """One thing that was looked at: what was seen, and what to do if that is wrong."""

    place: str
    level: Level
    says: str
    do: str = ""


#: The oldest versions that tests run on.
_MIN_REDIS, _MIN_RABBITMQ = (7, 0), (3, 10)
#: Seconds by which clocks may differ. S3 refuses signatures after fifteen minutes.
_CLOCK_WARNS, _CLOCK_FAILS = 2.0, 60.0
#: The part of a disk, or of Redis's memory, that may be used.
_FULL_WARNS, _FULL_FAILS = 0.85, 0.95
_GIBIBYTE = 1024**3
#: What Redis must be set to, and what would happen otherwise.
_REDIS_SETTINGS = {
    "appendonly": ("yes", "batches that were accepted are lost when Redis dies"),
    "appendfsync": ("always", "the last second of accepted batches is lost when Redis dies"),
    "maxmemory-policy": ("noeviction", "Redis drops batches when its memory is full"),
}


def redis_version(found: str) -> Finding:
    """Whether the scripts run on this Redis."""
    return _version("redis", "Redis", found, _MIN_REDIS)


def rabbitmq_version(found: str) -> Finding:
    """Whether the broker has what queues need."""
    return _version("rabbitmq", "RabbitMQ", found, _MIN_RABBITMQ)


def redis_settings(found: Mapping[str, str]) -> list[Finding]:
    """Whether Redis keeps what it has promised."""
    findings = []
    for name, (wanted, otherwise) in _REDIS_SETTINGS.items():
        value = found.get(name, "unset")
        if value == wanted:
            findings.append(Finding("redis", Level.OK, f"{name} is {wanted}"))
            continue
        do = f"Set it in redis.conf, and now by: redis-cli CONFIG SET {name} {wanted}"
        text = f"{name} is {value}, not {wanted}: {otherwise}"
        findings.append(Finding("redis", Level.FAILED, text, do))
    return findings


def clock(place: str, seconds: float) -> Finding:
    """Whether a server's clock agrees with this machine's; `seconds` is how far it is ahead."""
    off = abs(seconds)
    if off < _CLOCK_WARNS:
        return Finding(place, Level.OK, "its clock agrees with this machine's")
    way = "ahead of" if seconds > 0 else "behind"
    return Finding(
        place,
        Level.FAILED if off >= _CLOCK_FAILS else Level.WARNING,
        f"its clock is {off:.0f} s {way} this machine's",
        "Let both run chrony or systemd-timesyncd: `timedatectl` says whether a clock is set.",
    )


def room(place: str, what: str, used: int, total: int) -> Finding:
    """Whether a disk or a memory has room, in bytes."""
    part = used / total if total else 0.0
    text = f"{what}: {part:.0%} of {total / _GIBIBYTE:.1f} GiB are used"
    if part < _FULL_WARNS:
        return Finding(place, Level.OK, text)
    level = Level.FAILED if part >= _FULL_FAILS else Level.WARNING
    return Finding(place, level, text, "Make room, or give it more: docs/operations.md, Sizing.")


def _version(place: str, name: str, found: str, minimum: tuple[int, int]) -> Finding:
    number = re.match(r"(\d+)\.(\d+)", found)
    wanted = ".".join(map(str, minimum))
    if number is None:
        return Finding(place, Level.SKIPPED, f"{name} does not say its version")
    if (int(number[1]), int(number[2])) < minimum:
        return Finding(
            place, Level.FAILED, f"{name} {found} is too old", f"Install {wanted} or later."
        )
    return Finding(place, Level.OK, f"{name} {found}")
