"""Commands that create batches, wait for them and read their results."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from cli.client.exit_codes import ExitCode
from cli.client.options import (
    AsJson,
    BatchId,
    BatchIds,
    Cache,
    Context,
    Endpoint,
    Inputs,
    Metadata,
    Priority,
    ResultOrder,
    Template,
    TemplateFields,
    TemplateModel,
    Wait,
    Window,
    connected,
    end_with,
)
from cli.client.output import is_terminal, note, print_json, print_record, print_records
from cli.client.words import rows_text, status_text

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write results to this file, or to files in this folder."),
]


def run(
    files: Inputs,
    output: Output = None,
    *,
    template: Template = None,
    model: TemplateModel = None,
    fields: TemplateFields = None,
    endpoint: Endpoint = None,
    window: Window = "24h",
    priority: Priority = 5,
    metadata: Metadata = None,
    cache: Cache = False,
    table: Annotated[
        bool, typer.Option("--table", help="Write the table that the template's `output` asks for.")
    ] = False,
    order: ResultOrder = "input",
    again: Annotated[
        bool, typer.Option("--again", help="Create new batches, even of files that were run.")
    ] = False,
    context: Context = None,
) -> None:
    """Run input files and print their results; the same command again takes up the same batches."""
    from cli.client.inputs import input_files
    from cli.client.runs import Runs
    from cli.client.submission import BatchOptions, metadata_of
    from cli.client.templates import template_of

    rows = template_of(template, model, fields)
    options = BatchOptions(endpoint, window, priority, metadata_of(metadata), rows, cache)
    with connected(context, waits=True) as gateway:
        runs = Runs(gateway, options, order=order, output=output, is_new=again, as_table=table)
        codes = runs.run(input_files(files))
    end_with(codes)


def submit(
    files: Inputs,
    endpoint: Endpoint = None,
    *,
    template: Template = None,
    model: TemplateModel = None,
    fields: TemplateFields = None,
    window: Window = "24h",
    priority: Priority = 5,
    metadata: Metadata = None,
    cache: Cache = False,
    wait: Wait = False,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Create a batch of each input file, and print the batches."""
    from cli.client.inputs import input_files
    from cli.client.submission import BatchOptions, create, metadata_of
    from cli.client.templates import template_of
    from cli.client.waiting import wait_for

    rows = template_of(template, model, fields)
    options = BatchOptions(endpoint, window, priority, metadata_of(metadata), rows, cache)
    paths = input_files(files)
    # All of them are looked at before anything is sent.
    bodies = [options.body(path) for path in paths]
    codes = []
    with connected(context, waits=wait) as gateway:
        # The key makes a repeated call harmless; another command makes another batch.
        made = [
            create(gateway, path, body, f"submit-{secrets.token_hex(20)}")
            for path, body in zip(paths, bodies, strict=True)
        ]
        for path, batch in zip(paths, made, strict=True):
            if wait:
                note(f"{path.name} is {batch['id']}")
                batch, code = wait_for(gateway, batch["id"], path.name)  # noqa: PLW2901  # the same batch, later
                codes.append(code)
            print_record(
                {**batch, "file": str(path)},
                lambda one: f"{one['id']}  {status_text(one)}  {one['file']}",
                as_json=as_json,
            )
    end_with(codes)


def watch(batch_ids: BatchIds, context: Context = None, *, as_json: AsJson = False) -> None:
    """Follow batches to their end; in a pipe, every change is a JSON line."""
    from cli.client.waiting import wait_for

    is_piped = as_json or not is_terminal()
    codes, ended = [], []
    with connected(context, waits=True) as gateway:
        for batch_id in batch_ids:
            batch, code = wait_for(
                gateway, batch_id, on_change=print_json if is_piped else lambda _: None
            )
            codes.append(code)
            ended.append(batch)
    if not is_piped:
        print_records(
            ended,
            ("ID", "STATUS", "ROWS", "FAILED"),
            lambda one: (
                one["id"],
                status_text(one),
                rows_text(one),
                str(one["request_counts"]["failed"] or "-"),
            ),
            as_json=False,
        )
    end_with(codes)


def fetch(
    batch_id: BatchId,
    output: Output = None,
    *,
    partial: Annotated[
        bool, typer.Option("--partial", help="Take the results so far of a batch that runs.")
    ] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only results of requests that have an error.")
    ] = False,
    table: Annotated[
        bool,
        typer.Option("--table", help="The batch's table: to a file, or its files to a folder."),
    ] = False,
    order: ResultOrder = "input",
    wait: Wait = False,
    context: Context = None,
) -> None:
    """Print a batch's results, or write them to a file; a broken download is continued."""
    from cli.client.exit_codes import code_of
    from cli.client.fetching import fetch as fetch_results
    from cli.client.fetching import fetch_table
    from cli.client.sinks import file_of
    from cli.client.waiting import wait_for

    with connected(context, waits=True) as gateway:
        batch = gateway.get(f"batches/{batch_id}")
        if wait:
            batch, _ = wait_for(gateway, batch_id)
        code = code_of(batch)
        if code is ExitCode.NOT_ENDED and not partial:
            note(
                f"{batch_id} is {status_text(batch)}, {rows_text(batch)} rows. Take the results so "
                "far with --partial, or wait with --wait."
            )
            end_with([code])
        if table:
            fetch_table(gateway, batch, output)
            end_with([code])
        if output is not None:
            output = file_of(output, batch_id, only_failed=failed)
        fetch_results(gateway, batch, order=order, only_failed=failed, output=output)
    end_with([code])
