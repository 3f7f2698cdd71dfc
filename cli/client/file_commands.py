"""`batchyard files`: uploaded files and results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.client.exit_codes import ExitCode
from cli.client.options import AsJson, Context, Endpoint, FileId, Window, connected, end_with
from cli.client.output import Record, ask, can_ask, details, note, print_record, print_records
from cli.client.words import bytes_text, time_text

if TYPE_CHECKING:
    from cli.client.gateway import Gateway

app = typer.Typer(no_args_is_help=True, help="List, check, download and delete files.")

_COLUMNS = ("ID", "NAME", "SIZE", "PURPOSE", "CREATED (UTC)", "EXPIRES (UTC)")
_SCAN = 1 << 20
#: Files of one call.
_PAGE = 1000


@app.command("ls")
def list_files(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show at most this many.")] = 20,
    *,
    after: Annotated[str | None, typer.Option(help="Begin after the file with this id.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show all files.")] = False,
    purpose: Annotated[
        str | None, typer.Option(help="Only files of this purpose: batch or batch_output.")
    ] = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """List your files, the newest first."""
    with connected(context) as gateway:
        size = _PAGE if every else limit
        page = gateway.get("files", limit=size, after=after, purpose=purpose)
        listed = page["data"]
        while every and page["has_more"]:
            page = gateway.get("files", limit=size, after=listed[-1]["id"], purpose=purpose)
            listed += page["data"]
    print_records(listed, _COLUMNS, _row, as_json=as_json)
    if page["has_more"]:
        note(f"There are more: batchyard files ls --after {listed[-1]['id']}, or --all")


@app.command()
def check(
    file_id: FileId,
    endpoint: Endpoint = None,
    window: Window = "24h",
    *,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Say what would become of a batch of an uploaded file, without creating it."""
    with connected(context, waits=True) as gateway:
        report = gateway.post(
            "batches",
            {
                "input_file_id": file_id,
                "endpoint": endpoint or _endpoint(gateway, file_id),
                "completion_window": window,
                "dry_run": True,
            },
        )
    print_record(report, _report_text, as_json=as_json)
    if report["errors"]:
        end_with([ExitCode.BATCH_FAILED])
    end_with([ExitCode.DONE if report["valid"] else ExitCode.ROWS_FAILED])


@app.command()
def get(
    file_id: FileId,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write here; a broken download is continued."),
    ] = None,
    context: Context = None,
) -> None:
    """Download a file."""
    from cli.client.downloads import download
    from cli.client.fetching import download_to
    from cli.client.sinks import write

    with connected(context, waits=True) as gateway:
        if output is None:
            write(download(gateway, file_id))
            return
        download_to(gateway, file_id, output)


@app.command()
def rm(
    file_ids: Annotated[list[str], typer.Argument(help="Ids, as `batchyard files ls` shows them.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Delete files; batches that already read them go on."""
    if not yes and can_ask() and ask(f"Delete {' '.join(file_ids)}? [y/N]") not in ("y", "yes"):
        note("Nothing was deleted.")
        return
    with connected(context) as gateway:
        for file_id in file_ids:
            deleted = gateway.delete(f"files/{file_id}")
            print_record(deleted, lambda file: f"{file['id']}  deleted", as_json=as_json)


def _endpoint(gateway: "Gateway", file_id: str) -> str:
    """The endpoint of the first request of an uploaded file."""
    import json

    from cli.client.downloads import download
    from shared.errors import InvalidInputError

    begin = b""
    for chunk in download(gateway, file_id):
        begin += chunk
        if b"\n" in begin.lstrip() or len(begin) > _SCAN:
            break
    try:
        return str(json.loads(begin.lstrip().partition(b"\n")[0])["url"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"The first line of {file_id} is not a request with a 'url'. Name the endpoint: "
            "--endpoint /v1/chat/completions"
        ) from error


def _row(file: Record) -> tuple[str, ...]:
    return (
        file["id"],
        file["filename"],
        bytes_text(file["bytes"]),
        file["purpose"],
        time_text(file["created_at"]),
        time_text(file["expires_at"]),
    )


def _report_text(report: Record) -> str:
    from cli.client.problems_text import problem_lines, warning_lines

    tokens, forecast = report["tokens"], report["forecast"] or {}
    done, late = forecast.get("finish_at"), forecast.get("finish_p80_at")
    pairs = [
        ("valid", "yes" if report["valid"] else "no"),
        ("rows", f"{report['rows']:,}"),
        ("model", report["model"] or ""),
        ("tokens", f"{tokens['input']:,} in, {tokens['output']:,} out at most"),
        ("done", f"{time_text(done)} to {time_text(late)} UTC (predicted)" if done else ""),
    ]
    refused = (report["refused"] or {}).get("data") or []
    errors = (report["errors"] or {}).get("data") or []
    too_long = [
        f"line {one['line']}: longer than the model's context"
        for one in report["context_length"]["violations"]
    ]
    # A gateway of an older version has none.
    warnings = warning_lines(report.get("warnings") or [])
    found = problem_lines([*errors, *refused])
    return "\n".join([details(pairs), *found, *too_long, *warnings])
