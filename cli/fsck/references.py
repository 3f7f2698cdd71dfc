"""Whether anything refers to an object, or will remove it. Decides, and reads nothing."""

import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from cli.fsck.finding import Finding, Problem, Subject
from shared.ledger.commits import commit_key
from shared.ledger.kinds import Kind
from shared.ledger.tenants import tenant_of
from shared.lifecycle import FINAL, TRANSITIONS
from shared.state import BatchRecord, FileRecord
from shared.storage import Listed

#: Younger objects may be on their way into Redis.
YOUNG_SECONDS = 120
#: The sweep of what dead processes left behind comes once an hour, for what is older than a day.
_ABANDONED_SECONDS = 90_000
_Verdict = tuple[Problem, str] | None


class Facts(NamedTuple):
    """What Redis knows of some objects."""

    batches: Mapping[str, BatchRecord]
    files: Mapping[str, FileRecord]
    api_keys: AbstractSet[str]
    tenants: AbstractSet[str]
    webhooks: AbstractSet[str]
    uploads: AbstractSet[str]
    pipelines: AbstractSet[str]
    #: Files that were deleted and are still read.
    read: AbstractSet[str]
    #: Keys and prefixes that will be removed.
    swept: AbstractSet[str]


def judge(one: Listed, kind: Kind, facts: Facts, *, now: float) -> Finding | None:
    """What is wrong with the object, as far as a listing and Redis say."""
    age = now - one.modified_at
    min_age = _ABANDONED_SECONDS if kind is Kind.UPLOAD_PART else YOUNG_SECONDS
    if (rule := _RULES.get(kind)) is None or age < min_age or members(one.key) & facts.swept:
        return None
    if (verdict := rule(one.key, facts)) is None:
        return None
    return Finding(one.key, kind, *verdict, Subject.OBJECT)


def members(key: str) -> set[str]:
    """The entries of the list of garbage that would remove this object."""
    folder = f"{key.rpartition('/')[0]}/"
    # The handovers of all edges of a pipeline are removed together.
    above = f"{folder.rstrip('/').rpartition('/')[0]}/"
    return {key, folder, f"{folder}/", above}


def last_of(key: str) -> str:
    """The id at the end of an object's key."""
    return key.rpartition("/")[2].removesuffix(".json")


def second_of(key: str) -> str:
    """The id in the middle of an object's key."""
    return key.split("/")[1]


def _api_key(key: str, facts: Facts) -> _Verdict:
    if last_of(key) in facts.api_keys:
        return None
    return Problem.UNINDEXED, "Redis does not know the API key"


def _tenant(key: str, facts: Facts) -> _Verdict:
    if tenant_of(key) in facts.tenants:
        return None
    return Problem.UNINDEXED, "Redis does not know the tenant's settings"


def _webhook(key: str, facts: Facts) -> _Verdict:
    if last_of(key) in facts.webhooks:
        return None
    return Problem.UNINDEXED, "Redis does not know the endpoint"


def _manifest(key: str, facts: Facts) -> _Verdict:
    if second_of(key) in facts.batches:
        return None
    return Problem.UNINDEXED, "Redis does not know the batch"


def _file(key: str, facts: Facts) -> _Verdict:
    if last_of(key) in facts.files or last_of(key) in facts.read:
        return None
    return Problem.UNREFERENCED, "no file has it"


def _upload_part(key: str, facts: Facts) -> _Verdict:
    if second_of(key) in facts.uploads:
        return None
    return Problem.UNREFERENCED, "no upload has it"


def _pipeline(key: str, facts: Facts) -> _Verdict:
    if second_of(key) in facts.pipelines:
        return None
    return Problem.UNINDEXED, "Redis does not know the pipeline"


def _handover(key: str, facts: Facts) -> _Verdict:
    if second_of(key) in facts.pipelines:
        return None
    return Problem.UNREFERENCED, "Redis does not know its pipeline"


def _of_live_batch(key: str, facts: Facts) -> _Verdict:
    record = facts.batches.get(second_of(key))
    if record is None:
        return Problem.UNREFERENCED, "Redis does not know its batch"
    if record.status in FINAL:
        return Problem.UNREFERENCED, f"its batch is {record.status}, and needs it no more"
    return None


def _of_batch(key: str, facts: Facts) -> _Verdict:
    if second_of(key) in facts.batches:
        return None
    return Problem.UNREFERENCED, "Redis does not know its batch"


def _commit(key: str, facts: Facts) -> _Verdict:
    record = facts.batches.get(second_of(key))
    if record is not None and record.status in FINAL:
        targets = {commit_key(record.id, event): row.target for event, row in TRANSITIONS.items()}
        return None if targets.get(key) is record.status else _of_live_batch(key, facts)
    return _of_batch(key, facts)


def _table(key: str, facts: Facts) -> _Verdict:
    record = facts.batches.get(second_of(key))
    table = json.loads(record.fields.get("table", "{}")) if record is not None else {}
    if (table.get("url") or "").endswith(f"/{key.rpartition('/')[0]}/"):
        return None
    return _of_live_batch(key, facts)


def _result(key: str, facts: Facts) -> _Verdict:
    record = facts.batches.get(second_of(key))
    fields = {} if record is None else record.fields
    for name in ("output", "error"):
        place, file_id = (fields.get(f"{name}_{what}") for what in ("object", "file_id"))
        if place and json.loads(place)["key"] == key and file_id in {*facts.files, *facts.read}:
            return None
    return _of_live_batch(key, facts)


#: Kinds without a rule are never referred to by Redis.
_RULES: Mapping[Kind, Callable[[str, Facts], _Verdict]] = {
    Kind.API_KEY: _api_key,
    Kind.TENANT: _tenant,
    Kind.WEBHOOK_ENDPOINT: _webhook,
    Kind.FILE: _file,
    Kind.FILE_RECORD: _file,
    Kind.MANIFEST: _manifest,
    Kind.DATASET: _of_batch,
    Kind.PLAN: _of_live_batch,
    Kind.ADDITION: _of_live_batch,
    Kind.COPY: _of_live_batch,
    Kind.CARRIED: _of_live_batch,
    Kind.CANCELLATION: _of_batch,
    Kind.LANE_FAILURE: _of_batch,
    Kind.PART: _result,
    Kind.RESULT: _result,
    Kind.TABLE: _table,
    Kind.COMMIT: _commit,
    Kind.BATCH_RECORD: _of_batch,
    Kind.PIPELINE: _pipeline,
    Kind.HANDOVER: _handover,
    Kind.TOKENIZER: _handover,
    Kind.UPLOAD_PART: _upload_part,
}
