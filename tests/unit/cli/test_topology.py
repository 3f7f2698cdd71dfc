"""`batchyard topology`; that a broker takes what it prints is held by tests/contract."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from shared.bus import topology
from shared.bus.topology import Bounds, User
from shared.errors import SetupError


def test_the_definitions_are_those_of_the_code_without_passwords() -> None:
    made = json.loads(_output("--definitions", "--tenant", "acme"))

    assert made == topology.definitions(
        [
            User("batchyard", "", tenant=False, exists=True, may_declare=False),
            User("acme", "", tenant=True, exists=True),
        ]
    )
    assert made["users"] == []


def test_passwords_are_included_as_hashes_for_those_whom_the_file_names(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords.json"
    passwords.write_text(json.dumps({"acme": "a secret"}))

    text = _output("--definitions", "--tenant", "acme", "--passwords", str(passwords))

    [user] = json.loads(text)["users"]
    assert (user["name"], len(user["password_hash"])) == ("acme", 48)
    assert "a secret" not in text


def test_the_rights_of_new_tenants_can_be_had_alone() -> None:
    made: dict[str, Any] = json.loads(
        _output("--definitions", "--only-logins", "--tenant", "acme", "--tenant", "globex")
    )

    assert set(made) == {
        "users",
        "permissions",
        "topic_permissions",
        "queues",
        "policies",
        "bindings",
    }
    assert {row["user"] for row in made["topic_permissions"]} == {"acme", "globex"}


def test_the_text_names_everything_and_the_commands_that_give_the_rights() -> None:
    text = _output("--tenant", "acme")

    made = topology.definitions([User("acme", "", tenant=True, exists=True)])
    for section in ("exchanges", "queues", "policies"):
        assert all(row["name"] in text for row in made[section])
    commands = [
        shlex.split(command)
        for command in re.findall(r"rabbitmqctl (set_permissions acme .*)", text)
    ]
    [row] = made["permissions"]
    assert commands == [
        ["set_permissions", "acme", row["configure"], row["write"], row["read"]],
    ]


def test_bounds_of_tenants_are_in_the_text_as_commands() -> None:
    text = _output("--tenant", "acme", "--queue", "orders", "--event", "batch.failed")

    [words] = re.findall(r"rabbitmqctl (set_user_limits acme .*)", text)
    assert json.loads(shlex.split(words)[2]) == Bounds().limits()
    assert re.search(r"queue +sub\.acme\.orders ", text)
    assert re.search(r"binding +batch\.events +batch\.failed\.acme\.\* -> sub\.acme\.orders", text)
    assert f'"max-length-bytes": {topology.TENANT_QUEUE_MAX_BYTES}' in text
    assert f"max_message_size = {topology.MAX_MESSAGE_BYTES}," in text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting"),
        ("[]", "has to be a JSON object"),
        ('{"acme": 1}', "has to be a JSON object"),
        ('{"globex": "x"}', "passwords of globex"),
        ('{"acme": ""}', "empty password"),
    ],
)
def test_passwords_that_cannot_be_used_are_refused(
    tmp_path: Path, content: str, reason: str
) -> None:
    passwords = tmp_path / "passwords.json"
    passwords.write_text(content)

    with pytest.raises(SetupError, match=reason):
        _output("--definitions", "--tenant", "acme", "--passwords", str(passwords))


def test_a_tenant_whose_name_could_widen_a_right_is_refused() -> None:
    with pytest.raises(SetupError, match="cannot be a tenant"):
        _output("--tenant", ".*")


def _output(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["topology", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output
