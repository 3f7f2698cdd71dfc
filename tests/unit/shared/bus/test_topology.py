import base64
import hashlib
import re
from typing import Any

import pytest

from shared.bus import topology
from shared.bus.topology import Bounds, User, definitions
from shared.errors import SetupError

SERVICE = User("batchyard", "secret", tenant=False)
ACME = User("acme", "secret", tenant=True)
TRUSTED = User("acme", "secret", tenant=True, bounds=Bounds(queues=None))


def rows(section: str, **fields: str) -> list[dict[str, Any]]:
    found = definitions([SERVICE, ACME])[section]
    return [row for row in found if fields.items() <= row.items()]


def may(user: User, right: str, exchange: str, key: str) -> bool:
    """As RabbitMQ decides: the name replaces {username}, and the pattern may match anywhere."""
    found = definitions([user])["topic_permissions"]
    [row] = [row for row in found if row["exchange"] == exchange]
    return re.search(row[right].replace("{username}", user.name), key) is not None


def test_the_password_hash_is_the_salt_and_the_digest_of_salt_and_password() -> None:
    stored = base64.b64decode(topology.password_hash("secret", b"salt"))

    assert stored == b"salt" + hashlib.sha256(b"saltsecret").digest()


def test_every_user_gets_a_salt_of_its_own() -> None:
    users = definitions([SERVICE, ACME])["users"]

    assert len({user["password_hash"] for user in users}) == 2


def test_the_same_random_bytes_give_the_same_definitions() -> None:
    def four_zeros(size: int) -> bytes:
        return bytes(size)

    first = definitions([ACME], random_bytes=four_zeros)

    assert first == definitions([ACME], random_bytes=four_zeros)


def test_only_the_users_given_exist_and_none_is_an_administrator() -> None:
    users = definitions([SERVICE, ACME])["users"]

    assert [(user["name"], user["tags"]) for user in users] == [("batchyard", ""), ("acme", "")]


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(ACME)


def test_the_service_may_do_everything_and_is_bound_by_no_topic() -> None:
    [row] = rows("permissions", user="batchyard")

    assert (row["configure"], row["write"], row["read"]) == (".*", ".*", ".*")
    assert rows("topic_permissions", user="batchyard") == []


def test_a_tenant_has_the_permissions_of_the_contract() -> None:
    [row] = rows("permissions", user="acme")

    own = r"(sub|reply)\.acme\.(main)"
    assert row["configure"] == "^$"
    assert row["write"] == r"^(batch\.submit|live\.request)$"
    assert row["read"] == f"^{own}$"


def test_a_tenant_has_the_queues_that_it_was_given_and_declares_none() -> None:
    user = User("acme", "secret", tenant=True, bounds=Bounds(queues=("orders", "a.b")))
    made = definitions([user])

    [row] = made["permissions"]
    given = {queue["name"] for queue in made["queues"]} - topology.QUEUE_ARGUMENTS.keys()
    assert given == {"sub.acme.orders", "sub.acme.a.b", "reply.acme.orders", "reply.acme.a.b"}
    assert all(re.search(row["read"], name) for name in given)
    for strange in ("sub.acme.axb", "sub.acme.other", "xsub.acme.orders", "sub.globex.orders"):
        assert not any(re.search(row[right], strange) for right in ("read", "write", "configure"))
    assert not any(
        re.search(row[right], name) for name in given for right in ("configure", "write")
    )


def test_a_tenants_queues_are_bound_to_the_events_that_it_was_given() -> None:
    bounds = Bounds(queues=("orders", "bills"), events=("batch.completed", "batch.failed"))
    made = definitions([User("acme", "secret", tenant=True, bounds=bounds)])

    bound = [
        (row["destination"], row["routing_key"])
        for row in made["bindings"]
        if row["source"] == topology.EVENTS_EXCHANGE
    ]
    assert bound == [
        (f"sub.acme.{name}", f"batch.{kind}.acme.*")
        for name in ("orders", "bills")
        for kind in ("completed", "failed")
    ]
    [permission] = made["permissions"]
    assert not re.search(permission["read"], topology.EVENTS_EXCHANGE)


@pytest.mark.parametrize("events", ["", "#", "batch.#", "batch.*.globex", "*.*", "batch.a|b"])
def test_events_that_could_be_those_of_others_are_refused(events: str) -> None:
    with pytest.raises(SetupError, match="names no events"):
        definitions([User("acme", "secret", tenant=True, bounds=Bounds(events=(events,)))])


def test_a_tenant_that_is_trusted_declares_queues_itself_and_they_end_unused() -> None:
    user = User("acme", "secret", tenant=True, bounds=Bounds(queues=None))
    made = definitions([user])

    [row] = made["permissions"]
    assert re.search(row["configure"], "sub.acme.any-name")
    assert not re.search(row["configure"], "sub.globex.any-name")
    assert {queue["name"] for queue in made["queues"]} == topology.QUEUE_ARGUMENTS.keys()
    [policy] = [one for one in made["policies"] if re.search(one["pattern"], "sub.acme.x")][1:]
    assert policy["priority"] > 0
    assert policy["definition"] == {
        "max-length-bytes": topology.TENANT_QUEUE_MAX_BYTES,
        "expires": 14 * 24 * 3600 * 1000,
    }


@pytest.mark.parametrize("name", ["", "a|b", "a b", "a" * 101, "ä"])
def test_a_name_of_a_queue_that_could_widen_a_pattern_is_refused(name: str) -> None:
    with pytest.raises(SetupError, match="end the name of a queue"):
        definitions([User("acme", "secret", tenant=True, bounds=Bounds(queues=(name,)))])


def test_a_tenants_connections_and_channels_are_counted_and_those_of_the_service_are_not() -> None:
    bounds = Bounds(connections=3, channels=30)
    made = definitions([SERVICE, User("acme", "secret", tenant=True, bounds=bounds)])

    limits = {user["name"]: user.get("limits") for user in made["users"]}
    assert limits == {"batchyard": None, "acme": {"max-connections": 3, "max-channels": 30}}


@pytest.mark.parametrize("bounds", [Bounds(connections=0), Bounds(channels=-1)])
def test_bounds_that_mean_nothing_or_everything_are_refused(bounds: Bounds) -> None:
    with pytest.raises(SetupError, match="at least one"):
        definitions([User("acme", "secret", tenant=True, bounds=bounds)])


def test_each_queue_of_a_tenant_is_bounded_in_bytes() -> None:
    [policy] = rows("policies", name="batch-tenant-size")

    assert re.search(policy["pattern"], "sub.acme.x")
    assert re.search(policy["pattern"], "reply.acme.x")
    assert not any(re.search(policy["pattern"], name) for name in topology.QUEUE_ARGUMENTS)
    assert policy["definition"] == {"max-length-bytes": topology.TENANT_QUEUE_MAX_BYTES}


@pytest.mark.parametrize("key", ["submit.v1.acme", "cancel.v1.acme"])
def test_a_tenant_may_submit_and_cancel_for_itself(key: str) -> None:
    assert may(ACME, "write", topology.SUBMIT_EXCHANGE, key)


@pytest.mark.parametrize(
    "key", ["submit.v1.globex", "submit.v1.acme.x", "x.submit.v1.acme", "submit.v2.acme", "#"]
)
def test_a_tenant_may_write_nothing_else(key: str) -> None:
    assert not may(ACME, "write", topology.SUBMIT_EXCHANGE, key)


@pytest.mark.parametrize(
    "key",
    [
        "batch.completed.acme.batch_1",
        "batch.*.acme.batch_1",
        "batch.*.acme.*",
        "batch.*.acme.#",
        "batch.in_progress.acme.*",
        "pipeline.*.acme.*",
        "request.quarantined.acme.*",
    ],
)
def test_a_tenant_that_is_trusted_may_bind_to_its_own_events(key: str) -> None:
    assert not may(ACME, "read", topology.EVENTS_EXCHANGE, key)
    assert may(TRUSTED, "read", topology.EVENTS_EXCHANGE, key)


@pytest.mark.parametrize(
    "key",
    [
        "#",
        "batch.#",
        "batch.*.*.*",
        "batch.*.globex.*",
        "batch.*.globex.acme.*",
        "batch.#.acme.*",
        "#.acme.*",
        "*.*.acme.*",
        "batch.*.acme",
        "batch.*.acme2.*",
        "pipeline.*.globex.*",
    ],
)
def test_a_tenant_may_bind_to_nothing_else(key: str) -> None:
    assert not may(TRUSTED, "read", topology.EVENTS_EXCHANGE, key)


@pytest.mark.parametrize("right", ["read", "write"])
def test_a_tenant_may_neither_forge_events_nor_read_submissions(right: str) -> None:
    forged = may(ACME, "write", topology.EVENTS_EXCHANGE, "batch.completed.acme.batch_1")
    read = may(ACME, "read", topology.SUBMIT_EXCHANGE, "submit.v1.acme")

    assert not {"write": forged, "read": read}[right]


@pytest.mark.parametrize("name", ["", ".*", "a.b", "Acme", "-acme", "a" * 64, "acme|globex", "a\n"])
def test_a_tenant_name_that_could_widen_a_pattern_is_refused(name: str) -> None:
    with pytest.raises(SetupError, match="cannot be a tenant"):
        definitions([User(name, "secret", tenant=True)])


def test_an_empty_password_is_refused() -> None:
    with pytest.raises(SetupError, match="empty password"):
        definitions([User("acme", "", tenant=True)])


def test_queues_are_quorum_queues_and_a_rejected_submission_reaches_the_dead_one() -> None:
    queues = {queue["name"]: queue["arguments"] for queue in rows("queues")}
    [dead] = rows("bindings", destination=topology.DEAD_QUEUE)

    kept = queues.keys() - {topology.LIVE_QUEUE}
    assert {queues[name]["x-queue-type"] for name in kept} == {"quorum"}
    assert dead["source"] == queues[topology.SUBMIT_QUEUE]["x-dead-letter-exchange"]
    assert dead["routing_key"] == queues[topology.SUBMIT_QUEUE]["x-dead-letter-routing-key"]


def test_live_calls_have_a_queue_of_their_own_that_is_bounded_in_all_ways() -> None:
    [queue] = rows("queues", name=topology.LIVE_QUEUE)
    [binding] = rows("bindings", source=topology.LIVE_EXCHANGE)
    [policy] = rows("policies", name="batch-live-size")

    assert (binding["destination"], binding["routing_key"]) == (topology.LIVE_QUEUE, "#")
    # A quorum queue writes all of its messages to disk.
    assert queue["arguments"]["x-queue-type"] == "classic"
    assert queue["arguments"]["x-message-ttl"] <= 60_000
    assert queue["arguments"]["x-max-length"] <= 10_000
    assert queue["arguments"]["x-overflow"] == "reject-publish"
    assert re.search(policy["pattern"], topology.LIVE_QUEUE)
    assert policy["definition"]["max-length-bytes"] <= 128 * 1024**2


@pytest.mark.parametrize("user", [ACME, TRUSTED], ids=["given queues", "trusted"])
def test_a_tenant_may_make_live_calls_for_itself_and_read_none(user: User) -> None:
    [row] = definitions([user])["permissions"]

    assert re.search(row["write"], topology.LIVE_EXCHANGE)
    assert not re.search(row["write"], topology.LIVE_QUEUE)
    assert not re.search(row["read"], topology.LIVE_QUEUE)
    assert may(user, "write", topology.LIVE_EXCHANGE, "live.v1.acme")
    for key in ("live.v1.globex", "live.v1.acme.x", "submit.v1.acme", "#"):
        assert not may(user, "write", topology.LIVE_EXCHANGE, key)
    assert not may(user, "read", topology.LIVE_EXCHANGE, "live.v1.acme")


def test_no_submission_is_unroutable() -> None:
    [binding] = rows("bindings", source=topology.SUBMIT_EXCHANGE)

    assert (binding["destination"], binding["routing_key"]) == (topology.SUBMIT_QUEUE, "#")


@pytest.mark.parametrize(
    ("name", "queue", "other"),
    [
        ("batch-submit-size", topology.SUBMIT_QUEUE, topology.DEAD_QUEUE),
        ("batch-dead-size", topology.DEAD_QUEUE, topology.LIVE_QUEUE),
    ],
)
def test_a_size_limit_covers_its_queue_alone(name: str, queue: str, other: str) -> None:
    [policy] = rows("policies", name=name)

    assert re.search(policy["pattern"], queue)
    assert not re.search(policy["pattern"], other)
    assert policy["definition"]["max-length-bytes"] >= 1024**3


def test_logins_are_users_with_their_rights_and_queues_and_nothing_else() -> None:
    trusted = User("globex", "secret", tenant=True, bounds=Bounds(queues=None))
    made = topology.logins([ACME, trusted], random_bytes=bytes)
    whole = definitions([ACME, trusted], random_bytes=bytes)

    for section in ("users", "permissions", "topic_permissions"):
        assert made.pop(section) == whole[section]
    assert {queue["name"] for queue in made.pop("queues")} == {"sub.acme.main", "reply.acme.main"}
    assert [one["name"] for one in made.pop("policies")] == ["batch-tenant-expiry-globex"]
    assert [one["routing_key"] for one in made.pop("bindings")] == [
        "batch.*.acme.*",
        "pipeline.*.acme.*",
    ]
    assert made == {}


def test_keys_end_in_what_is_filtered_by() -> None:
    assert topology.submit_key("acme") == "submit.v1.acme"
    assert topology.cancel_key("acme") == "cancel.v1.acme"
    assert topology.event_key("batch.failed", "acme", "batch_1") == "batch.failed.acme.batch_1"


def test_a_service_that_may_not_declare_may_use_what_is_there_and_no_more() -> None:
    user = User("batchyard", "", tenant=False, exists=True, may_declare=False)

    [row] = definitions([user])["permissions"]

    def names(right: str) -> set[str]:
        every = {*topology.EXCHANGE_TYPES, *topology.QUEUE_ARGUMENTS, "amq.default", "sub.acme.x"}
        return {name for name in every if re.search(row[right], name)}

    assert names("configure") == set()
    assert names("write") == {*topology.EXCHANGE_TYPES, "amq.default"}
    assert names("read") == set(topology.QUEUE_ARGUMENTS)


def test_a_user_who_exists_already_gets_rights_and_keeps_its_password() -> None:
    made = definitions([SERVICE, User("acme", "", tenant=True, exists=True)])

    assert [user["name"] for user in made["users"]] == ["batchyard"]
    assert {row["user"] for row in made["permissions"]} == {"batchyard", "acme"}
