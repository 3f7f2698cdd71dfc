"""One batch over rows: submitted once, followed to its end, its answers beside the rows."""

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any, Unpack

from batchyard.errors import BatchFailedError, RowsFailed
from batchyard.options import Options, require_known
from batchyard.requests import Template, body_of, endpoint_of, error_column, output_of
from batchyard.rows import Rows, require_free, rows_of
from batchyard.target import target_of
from cli.client.batch_commands import error_lines
from cli.client.downloads import download
from cli.client.following import follow
from cli.client.gateway import WAIT_SECONDS, Gateway
from cli.client.output import note
from cli.client.progress import Progress
from cli.client.run_key import run_key
from cli.client.sinks import write
from cli.client.submission import BatchOptions, create, take_up
from cli.client.templates import RowTemplate
from cli.client.words import rows_text
from shared.errors import InvalidInputError, NotFoundError
from shared.lifecycle import FINAL, Status

#: Where a file that cannot be read any more is spoken of.
_AGAIN = "again=True asks its rows anew."


class StoppedError(Exception):
    """Nobody waits for the batch any more."""


def submit(data: object, template: Template, **options: Unpack[Options]) -> "Batch":
    """Begin to ask a request of each row, and return at once.

    The same rows, template and options at the same gateway are the same batch.
    Raises InvalidInputError, and what the gateway refuses.
    """
    require_known(options)
    rows = rows_of(data)
    body = body_of(template, options)
    output = output_of(body, options, rows.answers_format)
    if not rows.count:
        raise InvalidInputError("There are no rows.")
    require_free(rows.names, list(output["columns"]))
    wanted = BatchOptions(
        endpoint_of(options),
        options.get("window", "24h"),
        options.get("priority", 5),
        options.get("metadata"),
        RowTemplate(endpoint_of(options), {"template": body}, output),
        options.get("cache", False),
    )
    with (
        closing(_gateway(options)) as gateway,
        tempfile.TemporaryDirectory(prefix="batchyard-") as folder,
    ):
        made = _submitted(gateway, rows.file(Path(folder)), wanted, options)
    return Batch(made, rows, options, error_column(output["columns"]))


class Batch:
    """A batch that was submitted over rows. It runs on by itself, whatever becomes of this."""

    def __init__(
        self, batch: Mapping[str, Any], rows: Rows, options: Options, errors: str | None
    ) -> None:
        """The batch over the rows, and the answers' column that says which rows have an error."""
        self.id: str = batch["id"]
        self._rows = rows
        self._options = options
        self._errors = errors

    def status(self) -> str:
        """Its status now, as docs/lifecycle.md lists them."""
        with closing(_gateway(self._options)) as gateway:
            return str(self._now(gateway)["status"])

    def cancel(self) -> None:
        """End it. Rows that have an answer by then keep it."""
        with closing(_gateway(self._options)) as gateway:
            gateway.post(f"batches/{self.id}/cancel")

    def result(self, stop: Event | None = None) -> Any:
        """Wait for its end, and return the rows with their answers.

        Raises BatchFailedError, RowsFailed if that was asked for, TransientError if the gateway
        does not answer for a quarter of an hour, and StoppedError once `stop` is set.
        """
        with closing(_gateway(self._options)) as gateway:
            return self._result(gateway, stop)

    def _result(self, gateway: Gateway, stop: Event | None) -> Any:
        try:
            self._wait(gateway, stop)
        except (KeyboardInterrupt, StoppedError):
            note(
                f"\nLeft running: {self.id}\nThe same call takes it up again. To end it: "
                f"batchyard cancel {self.id}"
            )
            raise
        batch = self._now(gateway)
        with tempfile.TemporaryDirectory(prefix="batchyard-") as folder:
            answers = self._answers(gateway, batch, Path(folder))
            table = self._joined(answers)
            if self._errors is None:
                failed = batch["request_counts"]["total"] - batch["request_counts"]["completed"]
            else:
                failed = self._rows.failed(answers, self._errors)
        if failed and self._options.get("check", False):
            raise RowsFailed(table, failed, self.id)
        return table

    def _wait(self, gateway: Gateway, stop: Event | None) -> None:
        is_shown = self._options.get("progress", True)
        with (
            Progress(gateway, self.id, is_shown=is_shown) as progress,
            closing(follow(gateway, self.id)) as changes,
        ):
            for batch in changes:
                progress.show(batch)
                if stop is not None and stop.is_set() and not _has_ended(batch):
                    raise StoppedError

    def _answers(self, gateway: Gateway, batch: Mapping[str, Any], folder: Path) -> list[Path]:
        found = batch.get("table") or {}
        if batch["status"] == Status.FAILED or not found.get("file_ids"):
            raise self._failure(batch, found)
        try:
            return list(_downloaded(gateway, found["file_ids"], folder))
        except NotFoundError as error:
            text = f"The answers of {self.id} are no longer kept. {_AGAIN}"
            raise NotFoundError(text) from error

    def _joined(self, answers: list[Path]) -> Any:
        table, count = self._rows.joined(answers)
        if count != self._rows.count:
            raise BatchFailedError(
                f"{self.id} has answers to {count} rows, and there are {self._rows.count}.",
                batch_id=self.id,
            )
        return table

    def _failure(self, batch: Mapping[str, Any], table: Mapping[str, Any]) -> BatchFailedError:
        why = error_lines(batch) or [(table.get("error") or {}).get("message", "it has no table")]
        problems = (batch.get("errors") or {}).get("data") or []
        text = f"{self.id} is {batch['status']}: {'; '.join(why)} {_AGAIN}"
        return BatchFailedError(text, batch_id=self.id, problems=problems)

    def _now(self, gateway: Gateway) -> dict[str, Any]:
        return gateway.get(f"batches/{self.id}")


def _downloaded(gateway: Gateway, file_ids: list[str], folder: Path) -> Iterator[Path]:
    for number, file_id in enumerate(file_ids):
        path = folder / str(number)
        with path.open("wb") as file:
            write(download(gateway, file_id), file)
        yield path


def _gateway(options: Options) -> Gateway:
    target = target_of(options.get("base_url"), options.get("api_key"), options.get("context"))
    report = note if options.get("progress", True) else lambda _: None
    return Gateway(target, patience=WAIT_SECONDS, report=report)


def _submitted(
    gateway: Gateway, path: Path, wanted: BatchOptions, options: Options
) -> Mapping[str, Any]:
    is_shown = options.get("progress", True)
    if options.get("again", False):
        key = run_key(gateway.target.url, secrets.token_hex(20), {})
        return create(gateway, path, wanted.body(path), key, is_shown=is_shown)
    submission = take_up(gateway, path, wanted, is_shown=is_shown)
    if submission.is_known and is_shown:
        batch = submission.batch
        note(
            f"These rows were asked before. Taking up {batch['id']}, which is {batch['status']} "
            f"({rows_text(batch)} rows). {_AGAIN}"
        )
    return submission.batch


def _has_ended(batch: Mapping[str, Any] | None) -> bool:
    return batch is not None and batch["status"] in FINAL
