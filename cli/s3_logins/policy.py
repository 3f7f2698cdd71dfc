"""What S3 logins may do in Batchyard's bucket, as AWS, Ceph and MinIO read it. No I/O."""

from collections.abc import Iterable, Mapping
from typing import Any

Statement = dict[str, Any]

#: Beside `s3:GetObject`, what placing an input takes: in parts, too, and again.
_WRITES = (
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
)
#: `shared.storage.READABLE`; a test compares them.
_READABLE = "probes/always"
_READS = ("s3:GetObject", "s3:GetObjectVersion")


def identity_policy(tenant: str, bucket: str, tenant_prefix: str) -> dict[str, Any]:
    """The policy to attach to the tenant's own user in a server of one's own."""
    return _document(_statements(tenant, bucket, tenant_prefix))


def lane_policy(bucket: str, tenant_prefix: str) -> dict[str, Any]:
    """The policy for the user of lane jobs in a server of one's own."""
    return _document(_lane_statements(bucket, tenant_prefix))


def bucket_policy(
    logins: Mapping[str, str],
    service_user: str,
    bucket: str,
    tenant_prefix: str,
    *,
    lane_user: str,
) -> dict[str, Any]:
    """The policy of the bucket itself, for the users named by tenant in `logins` and our own.

    The service user owns the bucket but not what others put into it, so it is named as well.
    """
    everything = {
        "Effect": "Allow",
        "Action": ["s3:*"],
        "Resource": [_arn(bucket), _arn(bucket, "*")],
        "Principal": _principal(service_user),
    }
    return _document(
        [
            everything,
            *(_of(lane_user, one) for one in _lane_statements(bucket, tenant_prefix)),
            *(
                _of(user, statement)
                for tenant, user in sorted(logins.items())
                for statement in _statements(tenant, bucket, tenant_prefix)
            ),
        ]
    )


def _lane_statements(bucket: str, tenant_prefix: str) -> list[Statement]:
    """Reading what batches run on, and writing parts: not keys, plans, commits and results."""
    parts = _arn(bucket, "batches/*/parts/*")
    inputs = ("files/*", "packs/*", "batches/*/copies/*", _READABLE)
    inbox = tenant_prefix.replace("{tenant}", "*")
    return [
        {
            "Sid": "ReadInputs",
            "Effect": "Allow",
            "Action": [*_READS],
            "Resource": [*(_arn(bucket, key) for key in inputs), _arn(bucket, f"{inbox}*"), parts],
        },
        {
            "Sid": "WriteParts",
            "Effect": "Allow",
            "Action": ["s3:PutObject"],
            "Resource": [parts],
        },
    ]


def _of(user: str, statement: Statement) -> Statement:
    """The statement for this user. Without a name: those of one policy have to differ."""
    named = {name: value for name, value in statement.items() if name != "Sid"}
    return named | {"Principal": _principal(user)}


def _statements(tenant: str, bucket: str, tenant_prefix: str) -> list[Statement]:
    inbox = tenant_prefix.replace("{tenant}", tenant)
    return [
        {
            "Sid": "PlaceInputs",
            "Effect": "Allow",
            "Action": [*_READS, *_WRITES],
            "Resource": [_arn(bucket, f"{inbox}*")],
        },
        {
            "Sid": "ListInputs",
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": [_arn(bucket)],
            "Condition": {"StringLike": {"s3:prefix": [f"{inbox}*"]}},
        },
        # The dispatcher tags each output and error file with its tenant before it is announced.
        {
            "Sid": "ReadResults",
            "Effect": "Allow",
            "Action": ["s3:GetObject"],
            "Resource": [_arn(bucket, "batches/*")],
            "Condition": {"StringEquals": {"s3:ExistingObjectTag/tenant": tenant}},
        },
    ]


def _document(statements: Iterable[Statement]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _arn(bucket: str, key: str = "") -> str:
    return f"arn:aws:s3:::{bucket}/{key}" if key else f"arn:aws:s3:::{bucket}"


def _principal(user: str) -> dict[str, list[str]]:
    return {"AWS": [f"arn:aws:iam:::user/{user}"]}
