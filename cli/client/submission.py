"""Creates the batch of an input file, or finds the one that the same command created before."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cli.client.gateway import Gateway
from cli.client.inputs import digest_of, endpoint_of
from cli.client.progress import Sending
from cli.client.run_key import run_key
from cli.client.templates import RowTemplate
from cli.client.uploads import upload
from cli.client.words import bytes_text
from shared.errors import ConflictError, InvalidInputError


class BatchOptions(NamedTuple):
    """What a batch is created with, besides its input."""

    endpoint: str | None = None
    window: str = "24h"
    priority: int = 5
    metadata: Mapping[str, str] | None = None
    template: RowTemplate | None = None
    cache: bool = False

    def body(self, path: Path) -> dict[str, Any]:
        """The creation's fields for a file, but for the file's id. Raises InvalidInputError."""
        body: dict[str, Any] = {
            "endpoint": self.endpoint,
            "completion_window": self.window,
            "priority": self.priority,
            "metadata": dict(self.metadata) if self.metadata else None,
            # Only if it is wanted, so that older commands find their batches again.
            **({"cache": True} if self.cache else {}),
        }
        if self.template is not None:
            body["endpoint"] = self.endpoint or self.template.endpoint
            output = self.template.output
            table = {} if output is None else {"output": output}
            return {**body, "input": self.template.input, **table}
        return {**body, "endpoint": self.endpoint or endpoint_of(path)}


class Submission(NamedTuple):
    """The batch of a file, and whether it was there before."""

    path: Path
    batch: dict[str, Any]
    is_known: bool


def metadata_of(pairs: list[str] | None) -> dict[str, str]:
    """`NAME=VALUE` as metadata. Raises InvalidInputError."""
    found = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidInputError(f"--metadata {pair}: write NAME=VALUE.")
        found[name] = value
    return found


def take_up(
    gateway: Gateway, path: Path, options: BatchOptions, *, is_shown: bool = True
) -> Submission:
    """The batch that the same file and options have at this gateway; created if there is none."""
    body = options.body(path)
    key = run_key(gateway.target.url, digest_of(path), body)
    if found := known(gateway, key):
        return Submission(path, found, is_known=True)
    try:
        made = create(gateway, path, body, key, is_shown=is_shown)
        return Submission(path, made, is_known=False)
    except ConflictError:
        # The same command runs elsewhere, and was faster.
        if found := known(gateway, key):
            return Submission(path, found, is_known=True)
        raise


def create(
    gateway: Gateway, path: Path, body: Mapping[str, Any], key: str, *, is_shown: bool = True
) -> dict[str, Any]:
    """A new batch of the file. `is_shown` tells on a terminal how much of it was sent."""
    size, dataset = path.stat().st_size, body.get("input")
    text = f"{path.name}: sending {bytes_text(size)}"
    with Sending(text, size, is_shown=is_shown) as sending:
        purpose = "batch" if dataset is None else "user_data"
        file = upload(gateway, path, purpose=purpose, report=sending.show)
    if dataset is None:
        source: dict[str, Any] = {"input_file_id": file["id"]}
    else:
        source = {"input": {**dataset, "file_id": file["id"]}}
    return gateway.post("batches", {**body, **source}, key=key)


def known(gateway: Gateway, key: str) -> dict[str, Any] | None:
    """The batch that was created with this idempotency key."""
    page = gateway.get("batches", idempotency_key=key)
    return next(iter(page["data"]), None)
