import json

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from shared.storage import READABLE


def test_the_printed_policy_names_the_tenants_own_places_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BATCHYARD_S3_BUCKET", "company-data")
    monkeypatch.setenv("BATCHYARD_TENANT_PREFIX", "batches-in/{tenant}/")

    shown = CliRunner().invoke(app, ["s3-logins", "create", "--tenant", "acme", "--print=policy"])

    policy = json.loads(shown.stdout)
    arns = {arn for statement in policy["Statement"] for arn in statement["Resource"]}
    assert arns == {
        "arn:aws:s3:::company-data",
        "arn:aws:s3:::company-data/batches-in/acme/*",
        "arn:aws:s3:::company-data/batches/*",
    }
    conditions = [statement.get("Condition") for statement in policy["Statement"]]
    assert conditions == [
        None,
        {"StringLike": {"s3:prefix": ["batches-in/acme/*"]}},
        {"StringEquals": {"s3:ExistingObjectTag/tenant": "acme"}},
    ]


def test_lane_jobs_read_inputs_and_write_parts_and_nothing_else() -> None:
    shown = CliRunner().invoke(app, ["lane-logins", "s3", "--bucket", "company-data"])

    reads, writes = json.loads(shown.stdout)["Statement"]
    assert set(reads["Action"]) == {"s3:GetObject", "s3:GetObjectVersion"}
    assert {arn.partition("company-data/")[2] for arn in reads["Resource"]} == {
        "files/*",
        "packs/*",
        "inbox/*/*",
        "batches/*/copies/*",
        "batches/*/parts/*",
        READABLE,
    }
    assert writes["Action"] == ["s3:PutObject"]
    assert writes["Resource"] == ["arn:aws:s3:::company-data/batches/*/parts/*"]
