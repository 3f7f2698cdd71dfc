"""The lines of docs/engine-compatibility.md as batches of a real fleet, beside `vllm serve`.

`tests/engine/test_engine.py` gives them to engines; here they come over HTTP and go through
gateway, dispatcher and lane jobs. Takes minutes: `pytest -m on_demand tests/e2e`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai.types import Batch

from cli.fleet import Fleet, Options
from tests.e2e.conftest import COLD_SECONDS, RunningFleet
from tests.engine.compatibility.comparison import outcome
from tests.engine.compatibility.line import ADAPTER, Line
from tests.engine.compatibility.lines import LINES
from tests.engine.compatibility.models import catalog_content, make_models, make_vision_model
from tests.engine.compatibility.page import read_outcomes
from tests.engine.compatibility.vllm_alone import Answers, answers_of_serve

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = pytest.mark.on_demand

_KNOWN = read_outcomes()
#: Lines that may come to another word beside others than alone.
_MAX_TIES = 10
#: A response with its status and body, or the error of a row without one.
Row = tuple[int, Any] | str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_models(tmp_path_factory.mktemp("models"))
    make_vision_model(folder)
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Answers:
    """What `vllm serve` answers; it is gone before the fleet starts."""
    found: Answers = {}
    for engine in dict.fromkeys(line.engine for line in LINES):
        lines = [line for line in LINES if line.engine == engine]
        found |= answers_of_serve(folder, engine, lines)
    return found


@pytest.fixture(scope="module")
def fleet(
    served: Answers, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningFleet]:
    """A fleet of the models of the lines."""
    assert served
    run_dir = tmp_path_factory.mktemp("fleet")
    path = run_dir / "catalog.yaml"
    path.write_text(yaml.safe_dump(catalog_content(folder, idle_seconds=300)))
    running = Fleet(Options(run_dir, catalog=path), report=print)
    try:
        running.start()
        yield RunningFleet(running)
    finally:
        running.stop()


def test_every_line_has_the_answer_of_vllm_serve_through_the_fleet(
    fleet: RunningFleet, served: Answers
) -> None:
    with fleet.settings(BATCHYARD_STRICT_INPUT="false"):
        batches = [_submitted(fleet, lines) for lines in _groups()]
        found = {
            custom_id: row
            for batch in batches
            for custom_id, row in _rows(fleet, fleet.wait(batch, seconds=COLD_SECONDS))
        }

        assert len(found) == len(LINES)
        others = [line for line in LINES if _otherwise(line, found[_custom_id(line)], served)]
        # Which rows are computed together may decide between two words, also in `vllm serve`,
        # which had one at a time.
        still_others = []
        for line in others:
            rows = dict(_rows(fleet, fleet.wait(_submitted(fleet, [line]))))
            if said := _otherwise(line, rows[_custom_id(line)], served):
                still_others.append(said)
    assert not still_others, "\n".join(still_others)
    assert len(others) <= _MAX_TIES, [line.id for line in others]


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, id=line.id) for line in LINES if _KNOWN[line.id].fails],
)
def test_a_line_that_openais_validation_refuses_fails_its_batch(
    fleet: RunningFleet, line: Line
) -> None:
    ended = fleet.wait(_submitted(fleet, [line]))

    assert ended.status == "failed"
    assert ended.errors is not None
    assert [one.code for one in ended.errors.data or []] == [_KNOWN[line.id].fails]


def _otherwise(line: Line, row: Row, served: Answers) -> str:
    """What the row came to instead of what is known of its line; empty if it came to that."""
    expected = _KNOWN[line.id]
    # What fails the whole batch elsewhere is the error of its row here.
    if code := expected.fails or _mismatch(line):
        return "" if row == code else f"{line.id}: {row} and not {code}"
    if isinstance(row, str):
        return f"{line.id}: {row}"
    try:
        here = outcome(line, served[line.id], None, row, fails="").here
    except AssertionError as error:
        return str(error)
    return "" if here == expected.here else f"{line.id}: {here}"


def _mismatch(line: Line) -> str:
    """The code of a line that names another model than its batch is for; empty for all others.

    An engine by itself knows no other model.
    """
    is_other = line.body.get("model") in {one.engine for one in LINES} - {line.engine}
    return "mismatched_model" if is_other else ""


def _groups() -> list[list[Line]]:
    """The lines of each batch: those of one model, or of its adapter, and one endpoint.

    One that fails a whole batch by itself stands among good ones of its endpoint.
    """
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in LINES:
        if not _KNOWN[line.id].fails:
            model = ADAPTER if line.body.get("model") == ADAPTER else line.engine
            groups.setdefault((line.path, model), []).append(line)
    for line in LINES:
        if _KNOWN[line.id].fails:
            next(lines for (path, _), lines in groups.items() if path == line.path).append(line)
    return list(groups.values())


def _custom_id(line: Line) -> str:
    return f"line-{LINES.index(line)}"


def _submitted(fleet: RunningFleet, lines: list[Line]) -> Batch:
    content = b"".join(
        json.dumps(
            {"custom_id": _custom_id(line), "method": "POST", "url": line.path, "body": line.body}
        ).encode()
        + b"\n"
        for line in lines
    )
    return fleet.submit(content, lines[0].path)


def _rows(fleet: RunningFleet, batch: Batch) -> Iterator[tuple[str, Row]]:
    assert batch.status == "completed", batch
    results = fleet.results(batch) if batch.output_file_id else []
    errors = fleet.errors(batch) if batch.error_file_id else []
    for one in (*results, *errors):
        response = one["response"]
        if response is None:
            yield one["custom_id"], one["error"]["code"]
        else:
            yield one["custom_id"], (response["status_code"], response["body"])
