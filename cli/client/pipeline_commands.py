"""`batchyard pipeline`: batches in stages, declared in a file."""

import secrets
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.client.exit_codes import ExitCode, code_of
from cli.client.options import AsJson, Context, connected, end_with
from cli.client.output import Record, details, note, print_record, print_records
from cli.client.words import duration_text, rows_text, time_text

app = typer.Typer(no_args_is_help=True, help="Batches in stages, each with the rows of the last.")

_COLUMNS = ("ID", "STATUS", "STAGES", "REQUESTS", "ROWS", "AGE")
_PAGE = 100
_LOOK_SECONDS = 1.0

PipelineId = Annotated[str, typer.Argument(help="Its id, as `batchyard pipeline ls` shows it.")]
Declared = Annotated[Path, typer.Argument(help="The declaration, in YAML or JSON.", dir_okay=False)]
Data = Annotated[
    Path | None,
    typer.Argument(help="A table to upload as the input, instead of one that is named there."),
]


Target = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file, or into this folder.")
]
AsTable = Annotated[
    bool, typer.Option("--table", help="The pipeline's table instead of lines of JSON.")
]


@app.command()
def run(
    declaration: Declared,
    data: Data = None,
    *,
    output: Target = None,
    table: AsTable = False,
    context: Context = None,
) -> None:
    """Run a pipeline and print the rows that come through; each is a line of JSON."""
    with connected(context, waits=True) as gateway:
        pipeline = _created(gateway, declaration, data, as_table=table)
        note(f"{declaration.name} is {pipeline['id']}")
        try:
            pipeline = _wait(gateway, pipeline)
        except KeyboardInterrupt:
            note(
                f"\nLeft running: {pipeline['id']}\nTo take its rows: batchyard pipeline fetch "
                f"{pipeline['id']} --wait\nTo end it: batchyard pipeline cancel {pipeline['id']}"
            )
            raise
        if table:
            _take_table(gateway, pipeline, output)
        else:
            _take(gateway, pipeline, output)
        note(_text(pipeline))
        if _code_of(pipeline) is ExitCode.ROWS_FAILED:
            note(f"To see why rows failed: batchyard pipeline fetch {pipeline['id']} --failed")
    end_with([_code_of(pipeline)])


@app.command()
def fetch(
    pipeline_id: PipelineId,
    output: Target = None,
    *,
    failed: Annotated[
        bool, typer.Option("--failed", help="The rows that failed, with their stages and reasons.")
    ] = False,
    table: AsTable = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended.")] = False,
    context: Context = None,
) -> None:
    """Print the rows of a pipeline that has ended; each is a line of JSON."""
    from shared.errors import InvalidInputError

    if failed and table:
        raise InvalidInputError("--table and --failed: rows that failed are in no table. Use one.")
    with connected(context, waits=True) as gateway:
        pipeline: Record = gateway.get(f"pipelines/{pipeline_id}")
        if wait:
            pipeline = _wait(gateway, pipeline)
        code = _code_of(pipeline)
        if code is ExitCode.NOT_ENDED:
            note(f"{_line(pipeline)}. Wait with --wait.")
        elif table:
            _take_table(gateway, pipeline, output)
        else:
            _take(gateway, pipeline, output, only_failed=failed)
    end_with([code])


@app.command()
def submit(
    declaration: Declared, data: Data = None, *, context: Context = None, as_json: AsJson = False
) -> None:
    """Create a pipeline, and print it."""
    with connected(context) as gateway:
        pipeline = _created(gateway, declaration, data)
    print_record(pipeline, _line, as_json=as_json)


@app.command()
def show(pipeline_id: PipelineId, context: Context = None, *, as_json: AsJson = False) -> None:
    """Show a pipeline with each of its stages."""
    with connected(context) as gateway:
        pipeline = gateway.get(f"pipelines/{pipeline_id}")
    print_record(pipeline, _text, as_json=as_json)


@app.command("ls")
def list_pipelines(context: Context = None, *, as_json: AsJson = False) -> None:
    """List your pipelines, the newest first."""
    with connected(context) as gateway:
        found = gateway.all_of("pipelines", at_once=_PAGE)
    print_records(found, _COLUMNS, _row, as_json=as_json)


@app.command()
def cancel(pipeline_id: PipelineId, context: Context = None, *, as_json: AsJson = False) -> None:
    """Cancel a pipeline: all its batches. Rows that came through by then are kept."""
    with connected(context) as gateway:
        pipeline = gateway.post(f"pipelines/{pipeline_id}/cancel")
    print_record(pipeline, _line, as_json=as_json)


def _code_of(pipeline: Record) -> ExitCode:
    """What became of it. A row may fail at a stage though its request did not."""
    code = code_of(pipeline)
    has_failed = code is ExitCode.DONE and pipeline["error_file_id"] is not None
    return ExitCode.ROWS_FAILED if has_failed else code


def _take(
    gateway: Any, pipeline: Record, output: Path | None, *, only_failed: bool = False
) -> None:
    """Write the rows that came through, or those that failed, if there are any."""
    from cli.client.downloads import download
    from cli.client.fetching import download_to
    from cli.client.sinks import file_of, write

    file_id = pipeline["error_file_id" if only_failed else "output_file_id"]
    if file_id is None:
        note("There is no such row.")
        return
    if output is None:
        write(download(gateway, file_id))
        return
    output = file_of(output, pipeline["id"], only_failed=only_failed)
    download_to(gateway, file_id, output)
    note(f"Wrote {output}.")


def _take_table(gateway: Any, pipeline: Record, output: Path | None) -> None:
    """Write its table. Raises InvalidInputError if there is none."""
    from cli.client.fetching import fetch_table

    fetch_table(gateway, pipeline, output)


def _created(gateway: Any, path: Path, data: Path | None, *, as_table: bool = False) -> Record:
    """The new pipeline. Raises InvalidInputError that names the file."""
    from cli.client.templates import read_yaml
    from cli.client.uploads import upload
    from shared.errors import InvalidInputError

    declared = read_yaml(path)
    if not isinstance(declared, dict) or not isinstance(declared.get("input"), dict):
        raise InvalidInputError(f"{path}: there is no 'input'.")
    if as_table and declared.get("output") is None:
        raise InvalidInputError(f"{path}: there is no 'output', so there will be no table.")
    if data is not None and not data.is_file():
        raise InvalidInputError(f"{data}: there is no such file.")
    if data is not None:
        file = upload(gateway, data, purpose="user_data")
        declared["input"] = {**declared["input"], "file_id": file["id"]}
    # The key makes a repeated call harmless; another command makes another pipeline.
    pipeline: Record = gateway.post("pipelines", declared, key=f"pipe-{secrets.token_hex(20)}")
    return pipeline


def _wait(gateway: Any, pipeline: Record) -> Record:
    """The pipeline once it has ended, with its progress on standard error."""
    from cli.client.pipeline_progress import LIVE, PipelineProgress

    with PipelineProgress(gateway, pipeline["id"]) as progress:
        progress.show(pipeline)
        while pipeline["status"] in LIVE:
            time.sleep(_LOOK_SECONDS)
            pipeline = gateway.get(f"pipelines/{pipeline['id']}")
            progress.show(pipeline)
    return pipeline


def _line(pipeline: Record) -> str:
    rows = rows_text(pipeline)
    return f"{pipeline['id']}  {pipeline['status']}  {rows} requests, {pipeline['rows']} rows done"


def _row(pipeline: Record) -> tuple[str, ...]:
    return (
        pipeline["id"],
        pipeline["status"],
        str(len(pipeline["stages"])),
        rows_text(pipeline),
        str(pipeline["rows"]),
        duration_text(time.time() - pipeline["created_at"]),
    )


def _text(pipeline: Record) -> str:
    usage, error = pipeline["usage"], pipeline.get("error") or {}
    pairs = [
        ("id", pipeline["id"]),
        ("status", pipeline["status"]),
        ("because", error.get("message", "")),
        ("rows", f"{pipeline['rows_read']:,} read, {pipeline['rows']:,} came through"),
        ("requests", rows_text(pipeline)),
        ("tokens", f"{usage['input_tokens']:,} in, {usage['output_tokens']:,} out"),
        ("output", pipeline["output_file_id"] or ""),
        ("errors", pipeline["error_file_id"] or ""),
        ("created", f"{time_text(pipeline['created_at'])} UTC"),
        *((f"stage {one['number']}", _stage_text(one)) for one in pipeline["stages"]),
    ]
    return details(pairs)


def _stage_text(stage: Record) -> str:
    words = [stage["kind"]]
    if stage.get("batch_id"):
        words.append(f"{stage['batch_id']} {stage['status']}")
    if stage.get("request_counts"):
        words.append(rows_text(stage))
    words += [f"{stage[name]} {name}" for name in ("failed", "dropped") if stage[name]]
    return ", ".join(words)
