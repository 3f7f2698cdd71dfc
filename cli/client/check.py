"""`batchyard check`: validates inputs on this machine, with the gateway's own rules and words."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.client.exit_codes import ExitCode
from cli.client.options import AsJson, Endpoint, Inputs, end_with
from cli.client.output import is_terminal, print_json
from cli.client.problems_text import problem_lines, warning_lines

_CHUNK = 1024 * 1024
_MAX_LISTED = 1000


def check(
    files: Inputs,
    endpoint: Endpoint = None,
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model that the gateway serves; repeatable. Without it, any."),
    ] = None,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Each line may name its own model and endpoint.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            help="Whether a bad line fails the whole batch, as the gateway's operator set it."
        ),
    ] = True,
    max_rows: Annotated[int, typer.Option(min=1, help="The gateway's limit.")] = 50_000,
    max_custom_id: Annotated[
        int, typer.Option(min=1, help="The gateway's limit for the characters of a custom_id.")
    ] = 512,
    as_json: AsJson = False,
) -> None:
    """Check input files without a server, by the rules of a gateway."""
    from cli.client.inputs import input_files
    from shared.input.validation import Limits

    codes = []
    for path in input_files(files):
        limits = Limits(rows=max_rows, custom_id_characters=max_custom_id)
        report = _checked(path, endpoint, model, limits, mixed=mixed, strict=strict)
        if as_json or not is_terminal():
            print_json(report)
        else:
            sys.stdout.write("\n".join(_lines(report)) + "\n")
        codes.append(_code(report))
    end_with(codes)


def _checked(
    path: Path,
    endpoint: str | None,
    models: list[str] | None,
    limits: Any,
    *,
    mixed: bool,
    strict: bool,
) -> dict[str, Any]:
    """What is wrong with one file: `errors` fail a batch, `refused` requests get an error each."""
    from cli.client.inputs import endpoint_of
    from shared.errors import InvalidInputError
    from shared.input.validation import InputCheck
    from shared.openai.endpoints import ENDPOINTS

    try:
        chosen = endpoint or endpoint_of(path)
    except InvalidInputError:
        # Every line is looked at, and the first one is what is wrong.
        chosen = ""
    if chosen not in ENDPOINTS and not mixed:
        chosen = next(iter(ENDPOINTS))
    served = _AnyModel() if models is None else {name: frozenset(ENDPOINTS) for name in models}
    found = InputCheck(chosen, served, limits, _AnyPlace(), is_mixed=mixed, is_strict=strict)
    refused: list[dict[str, Any]] = []
    with path.open("rb") as file:
        rows: list[Any] = []
        while chunk := file.read(_CHUNK):
            rows = found.feed(chunk)
            refused += _refusals(rows)
        refused += _refusals(found.finish())
    return {
        "file": str(path),
        "valid": not (found.problems or refused),
        "rows": found.rows,
        "model": found.model,
        "endpoint": chosen,
        "errors": [problem.model_dump() for problem in found.problems],
        "more_errors": max(0, found.problem_count - len(found.problems)),
        "refused": refused[:_MAX_LISTED],
        "warnings": [warning.model_dump() for warning in found.warnings],
        "more_refused": max(0, found.refused - _MAX_LISTED),
    }


class _AnyModel(dict[str, frozenset[str]]):
    """Every name is a model that serves every endpoint, because only a server knows its models."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> frozenset[str]:
        from shared.openai.endpoints import ENDPOINTS

        return frozenset(ENDPOINTS)


class _AnyPlace(dict[str, Any]):
    """Every model's rules, with every place of S3, because only a server knows a tenant's own."""

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ARG002  # they are the same for all
        from shared.openai.row_rules import DEFAULT_RULES

        return DEFAULT_RULES.with_places(("s3://",))


def _refusals(rows: list[Any]) -> list[dict[str, Any]]:
    from shared.input.bad_lines import problem_of

    return [problem.model_dump() for row in rows if (problem := problem_of(row)) is not None]


def _lines(report: dict[str, Any]) -> list[str]:
    rows, wrong = report["rows"], len(report["errors"]) + report["more_errors"]
    refused = len(report["refused"]) + report["more_refused"]
    about = f"{report['file']}: {rows:,} requests"
    if report["model"]:
        about += f" for {report['model']} on {report['endpoint']}"
    if report["valid"]:
        return [f"{about}, all valid", *warning_lines(report["warnings"])]
    return [
        f"{about}, {wrong:,} problems, {refused:,} requests that would get an error",
        *problem_lines([*report["errors"], *report["refused"]]),
        *warning_lines(report["warnings"]),
    ]


def _code(report: dict[str, Any]) -> ExitCode:
    if report["errors"]:
        return ExitCode.BATCH_FAILED
    return ExitCode.ROWS_FAILED if report["refused"] else ExitCode.DONE
