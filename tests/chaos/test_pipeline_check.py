"""The checker finds what can go wrong with a pipeline's rows, each planted into a run in order."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from shared import ids
from tests.chaos.evidence import Evidence
from tests.chaos.pipeline_check import broken_pipeline_promises
from tests.chaos.pipeline_rows import (
    FIRST,
    SECOND,
    first_answer,
    is_wanted,
    second_answer,
    twin_of,
)

_PIPELINE = ids.pipeline_id("acme", "http:run-1")
_INTENT = {
    "what": "pipeline",
    "key": "run-1",
    "asks": "run-1",
    "cache": False,
    "pipeline": _PIPELINE,
    "tenant": "acme",
    "model": "alpha",
    "rows": list(range(60)),
    "cancel": False,
}
_RECORD, _OUTPUT, _ERROR = f"pipeline:{_PIPELINE}", "files/acme/file-out", "files/acme/file-err"

Plant = Callable[[Evidence], object]


def in_order() -> Evidence:
    """A run in which one pipeline has ended as it should."""
    output, errors, seen = list[dict[str, Any]](), list[dict[str, Any]](), set[int]()
    for row in filter(is_wanted, _INTENT["rows"]):  # type: ignore[call-overload]  # its rows are numbers
        name, said = f"run-1.{row}", first_answer(_INTENT, row)
        if said is None:
            errors.append({"custom_id": name, "stage": FIRST, "error": {"code": "refused"}})
        elif twin_of(row) not in seen:
            seen.add(twin_of(row))
            columns = {"n": row, "twin": twin_of(row), "answer": said}
            output.append({"custom_id": name, **columns, "second": second_answer(_INTENT, row)})
    batches = {
        f"batch:{ids.batch_id('acme', ids.stage_message_id(_PIPELINE, stage))}": {
            "status": "completed"
        }
        for stage in (FIRST, SECOND)
    }
    record = {"status": "completed", "ended_at": "9", "output_file_id": "out"}
    return Evidence(
        published=[_INTENT, {"what": "piped", "key": "run-1", "pipeline": _PIPELINE}],
        redis={
            **batches,
            _RECORD: {**record, "error_file_id": "err"},
            "file:out": {"key": _OUTPUT},
            "file:err": {"key": _ERROR},
        },
        received={
            queue: [{"id": "evt_1", "type": "pipeline.completed", "data": {"id": _PIPELINE}}] * 2
            for queue in ("sub.acme.one", "sub.acme.two")
        }
        | {"sub.globex.one": []},
        webhooks=[{"id": "wh_1", "type": "pipeline.completed", "batch": _PIPELINE}],
        bodies={_OUTPUT: _text(output), _ERROR: _text(errors)},
    )


def _text(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def _lines(evidence: Evidence, key: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in evidence.bodies[key].splitlines()]


def _change(key: str, change: Callable[[list[dict[str, Any]]], object]) -> Plant:
    def plant(evidence: Evidence) -> None:
        lines = _lines(evidence, key)
        change(lines)
        evidence.bodies[key] = _text(lines)

    return plant


def _twin(lines: list[dict[str, Any]]) -> None:
    """A second row of those that are alike."""
    for line in lines:
        other = line["n"] + 1
        if twin_of(other) == line["twin"] and is_wanted(other):
            said = first_answer(_INTENT, other)
            if said is not None:
                second = second_answer(_INTENT, other)
                more = {"custom_id": f"run-1.{other}", "n": other, "answer": said}
                lines.append({**line, **more, "second": second})
                return
    raise AssertionError("no two rows are alike")


_PLANTS: dict[str, tuple[str, Plant]] = {
    "a row twice": ("pipeline_row_twice", _change(_OUTPUT, lambda all_: all_.append(all_[0]))),
    "two alike": ("pipeline_row_twice", _change(_OUTPUT, _twin)),
    "a row gone": ("pipeline_row_missing", _change(_OUTPUT, lambda all_: all_.pop())),
    "a reason gone": ("pipeline_row_missing", _change(_ERROR, lambda all_: all_.pop())),
    "a row made up": (
        "pipeline_row_invented",
        _change(_OUTPUT, lambda all_: all_.append({**all_[0], "custom_id": "run-1.0"})),
    ),
    "another answer": (
        "pipeline_wrong_row",
        _change(_OUTPUT, lambda all_: all_[0].update(second="other")),
    ),
    "another reason": (
        "pipeline_wrong_row",
        _change(_ERROR, lambda all_: all_[0]["error"].update(code="other")),
    ),
    "another order": ("pipeline_out_of_order", _change(_OUTPUT, lambda all_: all_.reverse())),
    "no file": ("pipeline_file_missing", lambda run: run.bodies.pop(_OUTPUT)),
    "no record": ("pipeline_lost", lambda run: run.redis.pop(_RECORD)),
    "no end": ("pipeline_not_ended", lambda run: run.redis[_RECORD].pop("ended_at")),
    "another end": ("pipeline_wrong_end", lambda run: run.redis[_RECORD].update(status="expired")),
    "an end that one has not learnt of": (
        "pipeline_untold",
        lambda run: run.received["sub.acme.two"].clear(),
    ),
    "another end was told": (
        "pipeline_untold",
        lambda run: run.received["sub.acme.two"][0].update(type="pipeline.failed"),
    ),
    "two ends were told": (
        "pipeline_untold",
        lambda run: run.webhooks.append({**run.webhooks[0], "id": "wh_2"}),
    ),
    "a batch that runs": (
        "pipeline_batch",
        lambda run: next(one for key, one in run.redis.items() if key.startswith("batch:")).update(
            status="in_progress"
        ),
    ),
}


def test_nothing_is_found_where_all_is_well() -> None:
    assert list(broken_pipeline_promises(in_order())) == []


@pytest.mark.parametrize("name", _PLANTS)
def test_what_is_planted_is_found(name: str) -> None:
    kind, plant = _PLANTS[name]
    evidence = copy.deepcopy(in_order())

    plant(evidence)

    assert kind in {found for found, _, _ in broken_pipeline_promises(evidence)}
