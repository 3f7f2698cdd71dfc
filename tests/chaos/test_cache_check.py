"""The checker finds answers that were given again and are not their tenant's, each planted."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from shared import ids
from tests.chaos.cache_check import broken_cache_promises
from tests.chaos.evidence import Evidence
from tests.chaos.pipeline_rows import FIRST

_NAME = "run-common.3"
_FIRST, _SECOND, _OTHER = (f"batch_{number:032x}" for number in range(3))
_PIPELINE = ids.pipeline_id("acme", "http:run-9")
_STAGE = ids.batch_id("acme", ids.stage_message_id(_PIPELINE, FIRST))

Plant = Callable[[Evidence], object]


def _intent(batch: str, tenant: str = "acme", **changes: Any) -> dict[str, Any]:
    asked = {"asks": "run-common", "cache": True, "model": "alpha", "padding": 0}
    return {"what": "intended", "key": batch, "batch": batch, "tenant": tenant, **asked, **changes}


def in_order() -> Evidence:
    """The engine has answered a row, and a later batch of the same tenant was given the answer."""
    line = {"custom_id": _NAME, "response": {"status_code": 200}, "error": None, "cached": True}
    body = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    return Evidence(
        published=[_intent(_FIRST), _intent(_SECOND), _intent(_OTHER, "globex")],
        answers=[{"batch": _FIRST, "rows": [_NAME], "at": 1.0}],
        redis={f"batch:{_SECOND}": {"output_object": json.dumps({"key": "out"})}},
        bodies={"out": body},
    )


def _of_a_pipeline(evidence: Evidence) -> None:
    evidence.published[0] = _intent(_FIRST, what="pipeline", pipeline=_PIPELINE)
    evidence.answers[0]["batch"] = _STAGE


def test_a_run_in_order_breaks_nothing() -> None:
    of_a_pipeline = in_order()
    _of_a_pipeline(of_a_pipeline)

    assert list(broken_cache_promises(in_order())) == []
    assert list(broken_cache_promises(of_a_pipeline)) == []


@pytest.mark.parametrize(
    ("kind", "plant"),
    [
        ("cached_of_others", lambda evidence: evidence.answers[0].update(batch=_OTHER)),
        ("cached_of_others", lambda evidence: evidence.answers[0].update(rows=["run-common.4"])),
        ("cached_of_others", lambda evidence: evidence.published[0].update(model="beta")),
        ("cached_of_others", lambda evidence: evidence.published[0].update(cache=False)),
        ("cached_unasked", lambda evidence: evidence.published[1].update(cache=False)),
    ],
    ids=["another tenant", "another row", "another model", "gave none", "wants none"],
)
def test_what_is_planted_is_found(kind: str, plant: Plant) -> None:
    evidence = in_order()
    plant(evidence)

    assert [found[0] for found in broken_cache_promises(evidence)] == [kind]
