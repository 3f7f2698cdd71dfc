"""The places in S3 from which a tenant may bring inputs and media. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

#: In the operator's list of places, every tenant.
EVERY_TENANT = "*"
_TENANT = "{tenant}"


@dataclass(frozen=True)
class InputPlaces:
    """What every tenant may read, as `s3://bucket/prefix/` by tenant.

    `tenant_prefix` is in our own bucket. In it and in `further`, `{tenant}` stands for the tenant.
    """

    bucket: str
    tenant_prefix: str
    further: Mapping[str, Sequence[str]]

    def of(self, tenant: str) -> tuple[str, ...]:
        """The places of one tenant, its own prefix first."""
        own = f"s3://{self.bucket}/{self.tenant_prefix}"
        patterns = (own, *self.further.get(EVERY_TENANT, ()), *self.further.get(tenant, ()))
        return tuple(pattern.replace(_TENANT, tenant) for pattern in patterns)


def is_in(bucket: str, key: str, places: Iterable[str]) -> bool:
    """Whether the object is under one of the places."""
    # `..` would lead out of a prefix.
    is_plain = not {".", ".."} & set(key.split("/"))
    return is_plain and "/" not in bucket and f"s3://{bucket}/{key}".startswith(tuple(places))
