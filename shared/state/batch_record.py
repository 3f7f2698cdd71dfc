"""A batch's record in Redis, and the batch as HTTP shows it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from shared.lifecycle import FINAL, PAUSABLE, Status
from shared.openai.shapes import Batch
from shared.spent import by_pool, money, of_lanes

#: OpenAI's fields that the record keeps under the same name.
_TEXTS = (
    "id",
    "endpoint",
    "input_file_id",
    "completion_window",
    "status",
    "created_at",
    "expires_at",
)
_NULLABLE = (
    "model",
    "output_file_id",
    "error_file_id",
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)

#: Texts of records, each of a few kilobytes, that need not be read again.
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Everything that Redis knows about a batch, as text."""

    fields: Mapping[str, str]
    #: What `from_text` has read; empty for a record that is from elsewhere.
    text: str = field(default="", compare=False, repr=False)

    @classmethod
    @lru_cache(_REMEMBERED)
    def from_text(cls, text: str) -> "BatchRecord":
        """Build the record from names and values in turn, as scripts return a hash in JSON.

        The same text gives the same record.
        """
        flat = msgspec.json.decode(text, type=list[str])
        return cls(dict(zip(flat[::2], flat[1::2], strict=True)), text)

    @property
    def id(self) -> str:
        return self.fields["id"]

    def having(self, fields: Mapping[str, str | int]) -> "BatchRecord":
        """The same record with these fields changed."""
        return BatchRecord({**self.fields, **{name: str(one) for name, one in fields.items()}})

    @property
    def tenant(self) -> str:
        return self.fields["tenant"]

    @property
    def status(self) -> Status:
        return Status(self.fields["status"])

    @property
    def lanes(self) -> list[str]:
        """The lanes it runs on: usually one, and none before it has a plan."""
        return self.fields.get("lane", "").split()

    @property
    def input_range(self) -> tuple[int, int | None]:
        """The bytes [start, end) of the object that are its input; None as end if it is empty."""
        start = self.number("start")
        return start, start + self.number("size") or None

    @property
    def file_ids(self) -> list[str]:
        """The ids of its input file, its result files and those of its table."""
        names = ("input_file_id", "output_file_id", "error_file_id")
        found = [self.fields[name] for name in names if name in self.fields]
        return [*found, *self.table_file_ids]

    @property
    def table_file_ids(self) -> list[str]:
        """The ids of the files of its table, in order."""
        found: list[str] = json.loads(self.fields.get("table", "{}")).get("file_ids", [])
        return found

    @property
    def takes_rows(self) -> bool:
        """Whether it is an open batch that has not been closed and is not closing."""
        return takes_rows(self.fields)

    @property
    def ended_at(self) -> int | None:
        """When it ended (Unix seconds); None while it is live."""
        return self.number(f"{self.status}_at") if self.status in FINAL else None

    def number(self, field: str) -> int:
        """A counter or time; 0 if it was never set."""
        return int(self.fields.get(field, 0))

    def to_openai(self) -> Batch:
        """The batch as the HTTP API shows it."""
        return to_openai(self.fields)


def to_openai(fields: Mapping[str, str]) -> Batch:
    """OpenAI's batch object from a record, or from the snapshot in an event."""

    def number(field: str) -> int:
        return int(fields.get(field, 0))

    errors = fields.get("errors")
    metadata = fields.get("metadata")
    tokens_in, tokens_out = number("input_tokens"), number("output_tokens")
    # One validation of nested dicts is several times faster than a model for each part.
    return Batch.model_validate(
        {
            **{name: fields[name] for name in _TEXTS},
            **{name: fields.get(name) for name in _NULLABLE},
            "errors": {"data": json.loads(errors)} if errors else None,
            "request_counts": {
                "total": number("total"),
                "completed": number("completed"),
                # Rows of a failed lane get their error lines only when the batch ends.
                "failed": number("failed") + number("given_up"),
            },
            "usage": {
                "input_tokens": tokens_in,
                "input_tokens_details": {"cached_tokens": number("cached_tokens")},
                "output_tokens": tokens_out,
                "output_tokens_details": {"reasoning_tokens": number("reasoning_tokens")},
                "total_tokens": tokens_in + tokens_out,
            },
            "metadata": json.loads(metadata) if metadata else None,
            "paused": "paused" in fields and fields["status"] in PAUSABLE,
            "warnings": warnings_of(fields),
            "predicted": predicted_of(fields),
            "open": takes_rows(fields),
            "pipeline": fields.get("pipeline"),
            "cached": number("cached_rows"),
            "asked_again": number("asked_again"),
            "cost": _cost(fields),
            "table": json.loads(fields["table"]) if "table" in fields else None,
        }
    )


def takes_rows(fields: Mapping[str, str]) -> bool:
    """Whether the batch of this record takes rows, as in `lua/lib/open.lua`."""
    return (
        "open_model" in fields
        and "closed" not in fields
        and fields["status"] in (Status.VALIDATING, Status.IN_PROGRESS)
    )


def _cost(fields: Mapping[str, str]) -> dict[str, Any] | None:
    spent = of_lanes(fields.get("spent", ""))
    if not spent:
        return None
    pools = {pool: round(micros / 1e6, 6) for pool, micros in sorted(by_pool(spent).items())}
    found: dict[str, Any] = {"gpu_seconds": round(sum(pools.values()), 6), "by_pool": pools}
    if "prices" in fields:
        prices = json.loads(fields["prices"])
        value = round(money(spent, prices["pools"]), 9)
        found["amount"] = {"value": value, "currency": prices["currency"].lower()}
    return found


def predicted_of(fields: Mapping[str, str]) -> dict[str, Any] | None:
    """When the batch will end; None unless it runs and somebody knows."""
    runs = fields["status"] == Status.IN_PROGRESS and "paused" not in fields
    if not runs or "predicted" not in fields:
        return None
    found: dict[str, Any] = json.loads(fields["predicted"])
    return found


def warnings_of(fields: Mapping[str, str]) -> list[dict[str, str]]:
    """The warnings of a batch, without those of its deadline once it has ended."""
    found: list[dict[str, str]] = json.loads(fields.get("warnings", "[]"))
    if fields["status"] in FINAL:
        return [warning for warning in found if warning["code"] != "deadline_at_risk"]
    return found
