"""What exists in the broker: exchanges, queues, bindings and the rights of tenants.

No I/O: `definitions` returns what RabbitMQ loads at boot, and `Bus` takes its names from here.
"""

import base64
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from shared.errors import SetupError

VIRTUAL_HOST = "/"

SUBMIT_EXCHANGE = "batch.submit"
EVENTS_EXCHANGE = "batch.events"
DEAD_EXCHANGE = "batch.dead"
#: Apart from `batch.submit`, whose queue takes every key.
LIVE_EXCHANGE = "live.request"
EXCHANGE_TYPES: Mapping[str, str] = {
    SUBMIT_EXCHANGE: "topic",
    EVENTS_EXCHANGE: "topic",
    DEAD_EXCHANGE: "direct",
    LIVE_EXCHANGE: "topic",
}

SUBMIT_QUEUE = "batch.submit.v1"
DEAD_QUEUE = "batch.dead.submit"
LIVE_QUEUE = "live.request.v1"
DEAD_KEY = "submit"
#: The prefix of the addresses that the broker makes for answers without a queue.
DIRECT_REPLY = "amq.rabbitmq.reply-to."
SUBMIT_QUEUE_ARGUMENTS: Mapping[str, str | int] = {
    "x-queue-type": "quorum",
    # Explicit, because the default differs: none in 3.10, twenty in 4.x, which then drops.
    "x-delivery-limit": 50,
    "x-dead-letter-exchange": DEAD_EXCHANGE,
    "x-dead-letter-routing-key": DEAD_KEY,
    # At-least-once works only together with reject-publish.
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
DEAD_QUEUE_ARGUMENTS: Mapping[str, str | int] = {
    "x-queue-type": "quorum",
    "x-message-ttl": 14 * 24 * 3600 * 1000,
    # Looking at a dead letter is a delivery, and RabbitMQ 4 would drop it after the twentieth.
    "x-delivery-limit": 1_000_000_000,
}
#: Milliseconds that a live call may wait in the broker while no gateway takes it.
LIVE_QUEUE_MILLISECONDS = 60_000
#: The queue lasts and its messages do not: RabbitMQ 4.3 refuses a queue that goes with the broker
#: and that several consumers share.
LIVE_QUEUE_ARGUMENTS: Mapping[str, str | int] = {
    "x-queue-type": "classic",
    "x-message-ttl": LIVE_QUEUE_MILLISECONDS,
    "x-max-length": 10_000,
    "x-overflow": "reject-publish",
}
QUEUE_ARGUMENTS: Mapping[str, Mapping[str, str | int]] = {
    SUBMIT_QUEUE: SUBMIT_QUEUE_ARGUMENTS,
    DEAD_QUEUE: DEAD_QUEUE_ARGUMENTS,
    LIVE_QUEUE: LIVE_QUEUE_ARGUMENTS,
}
#: Without these nothing starts. The queue of live calls lies on one node of a cluster, and may be
#: away with it.
REQUIRED_QUEUES = (SUBMIT_QUEUE, DEAD_QUEUE)
#: Exchange, queue and key. With `#`, a message under a wrong key is answered and does not vanish.
BINDINGS: Sequence[tuple[str, str, str]] = (
    (SUBMIT_EXCHANGE, SUBMIT_QUEUE, "#"),
    (DEAD_EXCHANGE, DEAD_QUEUE, DEAD_KEY),
    (LIVE_EXCHANGE, LIVE_QUEUE, "#"),
)
#: Bytes, set by a policy: operators can change it on a live queue, unlike a queue argument.
SUBMIT_QUEUE_MAX_BYTES = 2 * 1024**3
#: Beyond this the oldest dead letters are dropped, so that no tenant can fill the broker's disk.
DEAD_QUEUE_MAX_BYTES = 1024**3
#: Beyond this, live calls are nacked.
LIVE_QUEUE_MAX_BYTES = 128 * 1024**2
#: The same for each queue of a tenant: the oldest replies and events are dropped.
TENANT_QUEUE_MAX_BYTES = 128 * 1024**2
#: A queue that a tenant has declared itself is deleted if it has had no consumer for so long.
TENANT_QUEUE_UNUSED_SECONDS = 14 * 24 * 3600
#: `max_message_size` of every broker that we configure. Batch messages have at most 1 MiB; those
#: between get an answer, and larger ones never reach a consumer's memory.
MAX_MESSAGE_BYTES = 4 * 1024**2
#: What the names of a tenant's queues end in, unless the operator says otherwise.
TENANT_QUEUES = ("main",)
#: What `sub.<tenant>.<name>` is bound to, each in front of the tenant's own part of the key.
TENANT_EVENTS = ("batch.*", "pipeline.*")
#: The name of the queues that `batchyard demo` reads, beside the others of its tenant.
DEMO_QUEUE = "demo"
DEMO_QUEUES = (*TENANT_QUEUES, DEMO_QUEUE)
TENANT_QUEUE_ARGUMENTS: Mapping[str, str | int] = {
    "x-queue-type": "quorum",
    # A subscriber may return an event as often as it likes; RabbitMQ 4 would drop it at the 20th.
    "x-delivery-limit": 1_000_000_000,
}

_TENANT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_EVENTS = re.compile(r"(batch|pipeline|request|slice)\.([a-z_]+|\*)")


@dataclass(frozen=True)
class Bounds:
    """How much of the broker a tenant may hold.

    RabbitMQ counts connections and channels of a user, but neither queues nor exchanges nor
    bindings, and whoever may declare a queue may declare an exchange of that name. So a tenant
    declares and binds nothing: for each of `queues` it is given `reply.<tenant>.<name>`, and
    `sub.<tenant>.<name>` with a binding for each of `events`. With None as `queues`, for a tenant
    that is trusted, it declares and binds queues itself, of any name and number.
    """

    connections: int = 20
    channels: int = 200
    queues: tuple[str, ...] | None = TENANT_QUEUES
    events: tuple[str, ...] = TENANT_EVENTS

    def limits(self) -> dict[str, int]:
        """The limits of a user, as `rabbitmqctl set_user_limits` takes them."""
        return {"max-connections": self.connections, "max-channels": self.channels}


@dataclass(frozen=True)
class User:
    """One login at the broker: a tenant, or (`tenant=False`) one of our own processes.

    `exists` is whether the broker has the user already, whose password and limits are then left
    alone; `may_declare` says of a process of ours whether it makes what is missing in the broker.
    """

    name: str
    password: str = field(repr=False)
    tenant: bool
    exists: bool = False
    may_declare: bool = True
    bounds: Bounds = field(default_factory=Bounds)


def submit_key(tenant: str) -> str:
    """The routing key under which `tenant` submits."""
    return f"submit.v1.{tenant}"


def requests_key(tenant: str) -> str:
    """The routing key under which `tenant` adds requests to open batches."""
    return f"requests.v1.{tenant}"


def close_key(tenant: str) -> str:
    """The routing key under which `tenant` closes open batches."""
    return f"close.v1.{tenant}"


def cancel_key(tenant: str) -> str:
    """The routing key under which `tenant` cancels."""
    return f"cancel.v1.{tenant}"


def replay_key(tenant: str) -> str:
    """The routing key under which `tenant` asks for events again."""
    return f"replay.v1.{tenant}"


def live_key(tenant: str) -> str:
    """The routing key under which `tenant` makes live calls."""
    return f"live.v1.{tenant}"


def may_receive(tenant: str, address: str, *kinds: Literal["reply", "sub"]) -> bool:
    """Whether only this tenant can read the address: its own queue, or direct reply-to."""
    return _addresses(tenant, kinds).fullmatch(address) is not None


@lru_cache(1024)
def _addresses(tenant: str, kinds: tuple[Literal["reply", "sub"], ...]) -> re.Pattern[str]:
    return re.compile(reply_pattern(re.escape(tenant), *kinds))


def reply_pattern(tenant_pattern: str, *kinds: Literal["reply", "sub"]) -> str:
    """A pattern for the addresses where answers to tenants of this pattern may go."""
    own = rf"({'|'.join(kinds)})\.{tenant_pattern}\.[A-Za-z0-9_.-]{{1,100}}"
    direct = rf"{re.escape(DIRECT_REPLY)}[!-~]{{1,200}}"
    return f"^({own}|{direct})$"


def event_key(event_type: str, tenant: str, subject: str) -> str:
    """The routing key of an event, such as `batch.completed`, of a batch or pipeline by its id."""
    return f"{event_type}.{tenant}.{subject}"


def logins(
    users: Sequence[User], *, random_bytes: Callable[[int], bytes] = secrets.token_bytes
) -> dict[str, Any]:
    """The users with their rights, queues and bindings: `definitions` for a broker with the rest.

    Raises `SetupError` as that does.
    """
    whole = definitions(users, random_bytes=random_bytes)
    own = {name for user in users for name in [*queues_of(user), _expiry(user)["name"]]}
    return {
        **{name: whole[name] for name in ("users", "permissions", "topic_permissions")},
        **{
            section: [row for row in whole[section] if row["name"] in own]
            for section in ("queues", "policies")
        },
        "bindings": [row for row in whole["bindings"] if row["destination"] in own],
    }


def queues_of(user: User) -> list[str]:
    """The queues that a tenant is given."""
    names = (user.bounds.queues or ()) if user.tenant else ()
    return [f"{kind}.{user.name}.{name}" for name in names for kind in ("sub", "reply")]


def definitions(
    users: Sequence[User], *, random_bytes: Callable[[int], bytes] = secrets.token_bytes
) -> dict[str, Any]:
    """Everything that the broker needs, in the form of RabbitMQ's `load_definitions`.

    Raises `SetupError` if a tenant's name could widen a permission pattern, or a password is empty.
    """
    tenants = [user for user in users if user.tenant]
    for user in users:
        _require_usable(user)
    return {
        "vhosts": [{"name": VIRTUAL_HOST}],
        "users": [
            {
                "name": user.name,
                "password_hash": password_hash(user.password, random_bytes(4)),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "",
                **({"limits": user.bounds.limits()} if user.tenant else {}),
            }
            for user in users
            if not user.exists
        ],
        "permissions": [_permissions(user) for user in users],
        "topic_permissions": [row for user in tenants for row in _topic_permissions(user)],
        "policies": [
            {
                "vhost": VIRTUAL_HOST,
                "name": "batch-submit-size",
                "pattern": f"^{re.escape(SUBMIT_QUEUE)}$",
                "apply-to": "queues",
                "priority": 0,
                "definition": {"max-length-bytes": SUBMIT_QUEUE_MAX_BYTES},
            },
            {
                "vhost": VIRTUAL_HOST,
                "name": "batch-dead-size",
                "pattern": f"^{re.escape(DEAD_QUEUE)}$",
                "apply-to": "queues",
                "priority": 0,
                "definition": {"max-length-bytes": DEAD_QUEUE_MAX_BYTES},
            },
            {
                "vhost": VIRTUAL_HOST,
                "name": "batch-live-size",
                "pattern": f"^{re.escape(LIVE_QUEUE)}$",
                "apply-to": "queues",
                "priority": 0,
                "definition": {"max-length-bytes": LIVE_QUEUE_MAX_BYTES},
            },
            {
                "vhost": VIRTUAL_HOST,
                "name": "batch-tenant-size",
                "pattern": r"^(sub|reply)\.",
                "apply-to": "queues",
                "priority": 0,
                "definition": {"max-length-bytes": TENANT_QUEUE_MAX_BYTES},
            },
            *(_expiry(user) for user in tenants if user.bounds.queues is None),
        ],
        "exchanges": [
            {
                "name": name,
                "vhost": VIRTUAL_HOST,
                "type": kind,
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
            for name, kind in EXCHANGE_TYPES.items()
        ],
        "queues": [
            {
                "name": name,
                "vhost": VIRTUAL_HOST,
                "durable": True,
                "auto_delete": False,
                "arguments": dict(arguments),
            }
            for name, arguments in (
                *QUEUE_ARGUMENTS.items(),
                *((name, TENANT_QUEUE_ARGUMENTS) for user in tenants for name in queues_of(user)),
            )
        ],
        "bindings": [
            _binding(*binding)
            for binding in (*BINDINGS, *(row for user in tenants for row in _bindings_of(user)))
        ],
    }


def password_hash(password: str, salt: bytes) -> str:
    """RabbitMQ's stored form: base64 of a four-byte salt and SHA-256 of salt and password."""
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def _require_usable(user: User) -> None:
    if not user.password and not user.exists:
        raise SetupError(f"The broker user {user.name!r} has an empty password; choose one.")
    if user.tenant and not _TENANT_NAME.fullmatch(user.name):
        raise SetupError(
            f"{user.name!r} cannot be a tenant: lower-case letters, digits, '-' and '_' only, "
            "63 at most, beginning with a letter or digit."
        )
    for name in user.bounds.queues or ():
        if not _QUEUE_NAME.fullmatch(name):
            raise SetupError(
                f"{name!r} cannot end the name of a queue: 1 to 100 of A-Z a-z 0-9 _ . -"
            )
    for events in user.bounds.events:
        if not _EVENTS.fullmatch(events):
            raise SetupError(
                f"{events!r} names no events: a type such as batch.completed, or batch.* for all."
            )
    if min(user.bounds.connections, user.bounds.channels) < 1:
        raise SetupError(f"The user {user.name!r} needs at least one connection and one channel.")


def _permissions(user: User) -> dict[str, str]:
    row = {"user": user.name, "vhost": VIRTUAL_HOST}
    if not user.tenant and user.may_declare:
        return row | {"configure": ".*", "write": ".*", "read": ".*"}
    if not user.tenant:
        # Replies use the default exchange, which has this name in permissions.
        written = _one_of([*EXCHANGE_TYPES, "amq.default"])
        return row | {"configure": "^$", "write": written, "read": _one_of(QUEUE_ARGUMENTS)}
    own = rf"(sub|reply)\.{user.name}\.{_queue_names(user.bounds)}"
    if user.bounds.queues is not None:
        written = _one_of((SUBMIT_EXCHANGE, LIVE_EXCHANGE))
        return row | {"configure": "^$", "write": written, "read": f"^{own}$"}
    # Who binds a queue writes to the queue, and reads from the exchange.
    return row | {
        "configure": f"^{own}$",
        "write": rf"^(batch\.submit|live\.request|{own})$",
        "read": rf"^(batch\.events|{own})$",
    }


def _expiry(user: User) -> dict[str, Any]:
    """The policy for the queues that a tenant declares itself. It takes the place of the other."""
    return {
        "vhost": VIRTUAL_HOST,
        "name": f"batch-tenant-expiry-{user.name}",
        "pattern": rf"^(sub|reply)\.{re.escape(user.name)}\.",
        "apply-to": "queues",
        "priority": 1,
        "definition": {
            "max-length-bytes": TENANT_QUEUE_MAX_BYTES,
            "expires": 1000 * TENANT_QUEUE_UNUSED_SECONDS,
        },
    }


def _queue_names(bounds: Bounds) -> str:
    if bounds.queues is None:
        return ".*"
    return f"({'|'.join(map(re.escape, bounds.queues))})"


def _bindings_of(user: User) -> Iterator[tuple[str, str, str]]:
    """Exchange, queue and key of each binding that a tenant is given."""
    for name in user.bounds.queues or ():
        for events in user.bounds.events:
            yield EVENTS_EXCHANGE, f"sub.{user.name}.{name}", f"{events}.{user.name}.*"


def _one_of(names: Iterable[str]) -> str:
    return f"^({'|'.join(map(re.escape, names))})$"


def _topic_permissions(user: User) -> list[dict[str, str]]:
    """Rows per topic exchange; RabbitMQ puts the name for {username} and checks bindings too.

    `#` may stand only in the last place: anywhere earlier it could match another tenant's name.
    """
    row = {"user": user.name, "vhost": VIRTUAL_HOST}
    return [
        row
        | {
            "exchange": SUBMIT_EXCHANGE,
            "write": r"^(submit|requests|close|cancel|replay)\.v1\.{username}$",
            "read": "^$",
        },
        row
        | {
            "exchange": LIVE_EXCHANGE,
            "write": r"^live\.v1\.{username}$",
            "read": "^$",
        },
        row
        | {
            "exchange": EVENTS_EXCHANGE,
            "write": "^$",
            "read": "^$"
            if user.bounds.queues is not None
            else r"^(batch|pipeline|request|slice)\.([a-z_]+|\*)\.{username}\.[^.]+$",
        },
    ]


def _binding(exchange: str, queue: str, key: str) -> dict[str, Any]:
    return {
        "source": exchange,
        "vhost": VIRTUAL_HOST,
        "destination": queue,
        "destination_type": "queue",
        "routing_key": key,
        "arguments": {},
    }
