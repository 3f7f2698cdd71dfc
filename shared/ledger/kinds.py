"""The kinds of objects that a fleet keeps in its bucket, and how their keys look. Pure."""

import re
from collections.abc import Mapping
from enum import StrEnum


class Kind(StrEnum):
    """A kind of object. Whoever adds one says in its tests what damage to it costs."""

    API_KEY = "API key"
    TENANT = "tenant's settings"
    WEBHOOK_ENDPOINT = "webhook endpoint"
    FILE = "file"
    FILE_RECORD = "file record"
    DELETION = "deletion"
    MANIFEST = "manifest"
    DATASET = "dataset"
    PACK = "pack"
    PLAN = "plan"
    ADDITION = "addition"
    COPY = "copy"
    CARRIED = "carried columns"
    CANCELLATION = "cancellation"
    LANE_FAILURE = "lane failure"
    PART = "part"
    RESULT = "result file"
    TABLE = "table"
    COMMIT = "commit"
    BATCH_RECORD = "batch record"
    PIPELINE = "pipeline"
    HANDOVER = "handover"
    TOKENIZER = "tokenizer"
    UPLOAD_PART = "upload part"
    BILL = "bill"
    REBUILD = "rebuild"
    PROBE = "probe"
    QUARANTINE = "quarantine"


_BATCH = r"batches/[^/]+"
_KEYS: Mapping[Kind, str] = {
    Kind.API_KEY: r"keys/[^/]+\.json",
    Kind.TENANT: r"tenants/[^/]+\.json",
    Kind.WEBHOOK_ENDPOINT: r"webhooks/[^/]+/[^/]+\.json",
    Kind.FILE_RECORD: r"files/[^/]+/[^/]+\.json",
    Kind.FILE: r"files/[^/]+/[^/]+",
    Kind.DELETION: r"deleted/[^/]+/[^/]+",
    Kind.MANIFEST: rf"{_BATCH}/manifest\.json",
    Kind.DATASET: rf"{_BATCH}/dataset-[0-9a-f]+\.json",
    Kind.PACK: r"packs/[^/]+/\d+\.jsonl",
    Kind.PLAN: rf"{_BATCH}/plan\.json",
    Kind.ADDITION: rf"{_BATCH}/copies/\d{{8}}-added\.jsonl",
    Kind.COPY: rf"{_BATCH}/copies/[^/]+\.jsonl",
    Kind.CARRIED: rf"{_BATCH}/copies/carried\.arrows",
    Kind.CANCELLATION: rf"{_BATCH}/cancel\.json",
    Kind.LANE_FAILURE: rf"{_BATCH}/lane-failed-[0-9a-f]+\.json",
    Kind.PART: rf"{_BATCH}/parts/\d+-\d+\.jsonl",
    Kind.RESULT: rf"{_BATCH}/[a-z_]+/(output|error|error-without-names)\.jsonl",
    Kind.TABLE: rf"{_BATCH}/[a-z_]+/table/(_SUCCESS|part-\d+\.(parquet|jsonl|csv))",
    Kind.COMMIT: rf"{_BATCH}/commit-[a-z_]+\.json",
    Kind.BATCH_RECORD: rf"{_BATCH}/record-\d+\.json",
    Kind.PIPELINE: r"pipelines/[^/]+/(pipeline|cancel|failure|ending|end)\.json",
    Kind.HANDOVER: r"pipelines/[^/]+/edges/\d+/\d+\.jsonl",
    Kind.TOKENIZER: r"pipelines/[^/]+/edges/tokenizer-[0-9a-f]{64}\.json",
    Kind.UPLOAD_PART: r"uploads/.+",
    Kind.BILL: r"bills/.+",
    Kind.REBUILD: r"rebuilds/\d+",
    Kind.PROBE: r"probes/.+",
    Kind.QUARANTINE: r"quarantine/.+",
}
#: What a fleet's keys begin with. Other objects in the bucket are not its own.
PREFIXES = tuple(sorted({f"{pattern.partition('/')[0]}/" for pattern in _KEYS.values()}))


def kind_of(key: str) -> Kind | None:
    """The kind of the object with this S3 key; None for one that no fleet writes."""
    return next((kind for kind, pattern in _KEYS.items() if re.fullmatch(pattern, key)), None)
