"""What `fsck` finds. Pure."""

from enum import StrEnum
from typing import NamedTuple


class Problem(StrEnum):
    """What is wrong with an object."""

    #: Redis has something whose object is not in S3.
    MISSING = "missing"
    #: Its bytes, or its ETag, are not those that were written.
    DAMAGED = "damaged"
    #: Redis does not know what the object is about, as if Redis had gone back in time.
    UNINDEXED = "unindexed"
    #: Nothing refers to it, and nothing will remove it.
    UNREFERENCED = "unreferenced"


class Subject(StrEnum):
    """Where a finding comes from, to look at it again."""

    OBJECT = "object"
    BATCH = "batch"
    FILE = "file"
    API_KEY = "key"
    TENANT = "tenant"
    WEBHOOK = "webhook"


class Finding(NamedTuple):
    """One object that does not fit."""

    key: str
    kind: str
    problem: Problem
    says: str
    subject: Subject
    #: The id of the batch, file, API key, tenant or endpoint; empty if it is only an object.
    about: str = ""
