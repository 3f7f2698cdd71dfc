"""`batchyard run`: from input files to their results, by batches that survive the command."""

import secrets
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from cli.client.batch_commands import error_lines
from cli.client.exit_codes import ExitCode
from cli.client.fetching import fetch_table
from cli.client.gateway import Gateway
from cli.client.output import ask, can_ask, is_terminal, note
from cli.client.results import Order, Results
from cli.client.sinks import PartFile, write
from cli.client.submission import BatchOptions, Submission, create, take_up
from cli.client.waiting import wait_for
from cli.client.words import rows_text
from shared.errors import BatchyardError, InvalidInputError
from shared.lifecycle import FINAL


class _TerminatedError(KeyboardInterrupt):
    """A signal other than Ctrl-C ends the command: nobody can be asked."""


class Runs:
    """Runs input files one after the other; their batches run side by side."""

    def __init__(
        self,
        gateway: Gateway,
        options: BatchOptions,
        *,
        order: Order,
        output: Path | None,
        is_new: bool,
        as_table: bool = False,
    ) -> None:
        """`as_table` writes each batch's table at its end, instead of its result lines."""
        self._gateway = gateway
        self._options = options
        self._as_table = as_table
        self._order = order
        self._output = output
        self._is_new = is_new
        self._running: dict[str, Submission] = {}

    def run(self, paths: Sequence[Path]) -> list[ExitCode]:
        """What became of each file's batch. Writes the results in the order of the files.

        Raises InvalidInputError.
        """
        suffix = _table_suffix(self._options) if self._as_table else None
        targets = _targets(paths, self._output, suffix)
        # All of them are looked at before anything is sent.
        for path in paths:
            self._options.body(path)
        with _terminable():
            try:
                submissions = [self._submit(path) for path in paths]
                finish = self._finish_table if self._as_table else self._finish
                return [finish(one, targets[one.path]) for one in submissions]
            except KeyboardInterrupt as interrupt:
                self._leave(is_asked=not isinstance(interrupt, _TerminatedError))
                is_ours = isinstance(interrupt, _TerminatedError)
                code = ExitCode.TERMINATED if is_ours else ExitCode.INTERRUPTED
                raise typer.Exit(code) from interrupt

    def _submit(self, path: Path) -> Submission:
        if self._is_new:
            key = f"run-{secrets.token_hex(20)}"
            body = self._options.body(path)
            submission = Submission(path, create(self._gateway, path, body, key), is_known=False)
        else:
            submission = take_up(self._gateway, path, self._options)
        batch = submission.batch
        if batch["status"] not in FINAL:
            self._running[batch["id"]] = submission
        if submission.is_known:
            note(
                f"{path.name}: this file was run before. Taking up {batch['id']}, which is "
                f"{batch['status']} ({rows_text(batch)} rows). --again runs it anew."
            )
        else:
            note(f"{path.name}: {batch['id']}")
        return submission

    def _finish_table(self, submission: Submission, target: Path | None) -> ExitCode:
        """Write the table of one batch once there is one."""
        batch_id = submission.batch["id"]
        ended, code = wait_for(self._gateway, batch_id, submission.path.name)
        self._running.pop(batch_id, None)
        self._tell(submission, ended, None)
        if code is not ExitCode.BATCH_FAILED:
            fetch_table(self._gateway, ended, target)
        return code

    def _finish(self, submission: Submission, target: Path | None) -> ExitCode:
        """Write the results of one batch while they come."""
        batch_id = submission.batch["id"]
        with ExitStack() as stack:
            part = file = None
            if target is not None:
                part = stack.enter_context(PartFile(target, f"{batch_id}.{self._order}"))
                file = part.file
            known = part.whole_lines() if part else 0
            results = Results(self._gateway, batch_id, order=self._order, offset=known)

            def take(batch: dict[str, Any]) -> None:
                nonlocal known
                counts = batch["request_counts"]
                done = counts["completed"] + counts["failed"]
                if done > known:
                    known = done
                    write(results.read(), file)

            # On a terminal, results would run into the progress.
            is_shown = file is None and is_terminal()
            ended, code = wait_for(
                self._gateway,
                batch_id,
                submission.path.name,
                on_change=_ignore if is_shown else take,
            )
            self._running.pop(batch_id, None)
            if not results.is_complete:
                write(results.read(), file)
            if part is not None:
                part.finish()
        self._tell(submission, ended, target)
        return code

    def _tell(self, submission: Submission, batch: dict[str, Any], target: Path | None) -> None:
        """The end of one file's run, in one line, and what can be done about it."""
        counts, name = batch["request_counts"], submission.path.name
        text = f"{name}: {batch['status']}, {rows_text(batch)} rows"
        if counts["failed"]:
            text += f", {counts['failed']} failed"
        note(f"{text}, in {target}" if target else text)
        for line in error_lines(batch):
            note(f"{name}: {line}")
        if counts["failed"]:
            note(f"{name}: to run what failed again, use: batchyard retry {batch['id']}")

    def _leave(self, *, is_asked: bool) -> None:
        """Ask whether the batches that run are to be cancelled, and else leave them running."""
        if not self._running:
            note("\nNo batch is running. The same command goes on.")
            return
        ids = " ".join(self._running)
        if is_asked and can_ask() and _wants_to_cancel(len(self._running)):
            for batch_id in list(self._running):
                self._cancel(batch_id)
            return
        note(
            f"\nLeft running: {ids}\nTo take it up again, use the same command, or: "
            f"batchyard watch {ids}"
        )

    def _cancel(self, batch_id: str) -> None:
        try:
            self._gateway.post(f"batches/{batch_id}/cancel")
            note(f"Cancelled {batch_id}. Results so far: batchyard fetch {batch_id} --wait")
        except BatchyardError as error:
            note(f"{batch_id} was not cancelled: {error}")


def _ignore(_: dict[str, Any]) -> None:
    pass


def _wants_to_cancel(count: int) -> bool:
    what = "the batch" if count == 1 else f"the {count} batches"
    try:
        return ask(f"\nCancel {what}, or leave running? [c]ancel, [L]eave:").startswith("c")
    except KeyboardInterrupt:
        # In a hurry: nothing is lost if it runs on.
        return False


def _table_suffix(options: BatchOptions) -> str:
    """How the names of the tables end. Raises InvalidInputError."""
    output = None if options.template is None else options.template.output
    if not isinstance(output, Mapping):
        raise InvalidInputError("--table: name a --template with 'output', which asks for a table.")
    return f".{output.get('format', 'parquet')}"


def _targets(
    paths: Sequence[Path], output: Path | None, suffix: str | None
) -> dict[Path, Path | None]:
    """Where each file's results go: one file, files of the same names in a folder, or nowhere.

    `suffix` takes the place of the one that the names in the folder have.
    """
    if output is None:
        return dict.fromkeys(paths)
    found: dict[Path, Path | None]
    if not output.is_dir() and len(paths) == 1:
        found = {paths[0]: output}
    elif output.is_file():
        raise InvalidInputError(
            f"--output {output}: this is a file, and {len(paths)} inputs need a folder."
        )
    else:
        found = {
            path: output / (path.name if suffix is None else f"{path.stem}{suffix}")
            for path in paths
        }
    if len(set(found.values())) < len(found):
        raise InvalidInputError(
            f"--output {output}: some inputs have the same name. Run them one by one."
        )
    if {target.resolve() for target in found.values() if target} & {
        path.resolve() for path in paths
    }:
        raise InvalidInputError(f"--output {output}: results would replace the inputs.")
    return found


@contextmanager
def _terminable() -> Iterator[None]:
    """Meanwhile SIGTERM ends the command in order, as Ctrl-C does."""

    def end(_: int, __: FrameType | None) -> None:
        raise _TerminatedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
