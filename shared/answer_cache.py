"""What a client may say about answers that are given again. Pure."""

from pydantic import BaseModel, ConfigDict

from shared.integers import CacheSeconds


class Cache(BaseModel):
    """For how long the answers may be given to later batches; without it, as the operator says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: CacheSeconds | None = None


def cache_seconds(wanted: "Cache | bool | None", *, most: int) -> int:
    """How long the answers of a batch may be given again; 0 where it wants no cache."""
    if not wanted:
        return 0
    asked = None if wanted is True else wanted.seconds
    return min(asked or most, most)
