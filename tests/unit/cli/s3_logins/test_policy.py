import json

import pytest
from typer.testing import CliRunner

from cli.__main__ import app


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
