"""What a tenant's S3 login may do in Batchyard's bucket, as AWS, Ceph and MinIO read it. No I/O."""

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
_READS = ("s3:GetObject", "s3:GetObjectVersion")


def identity_policy(tenant: str, bucket: str, tenant_prefix: str) -> dict[str, Any]:
    """The policy to attach to the tenant's own user in a server of one's own."""
    return _document(_statements(tenant, bucket, tenant_prefix))


def bucket_policy(
    logins: Mapping[str, str], service_user: str, bucket: str, tenant_prefix: str
) -> dict[str, Any]:
    """The policy of the bucket itself, for the users named by tenant in `logins`.

    The service user owns the bucket but not what tenants put into it, so it is named as well.
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
            *(
                # Without names: those of one policy have to differ.
                {name: value for name, value in statement.items() if name != "Sid"}
                | {"Principal": _principal(user)}
                for tenant, user in sorted(logins.items())
                for statement in _statements(tenant, bucket, tenant_prefix)
            ),
        ]
    )


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
