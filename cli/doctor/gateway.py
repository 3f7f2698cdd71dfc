"""Sends one row through each warm engine: through every process of the fleet, as a client does."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from cli.client.contexts import Target
from cli.client.gateway import Gateway
from cli.doctor.finding import Finding, Level
from shared.errors import BatchyardError
from shared.lifecycle import FINAL, Status

_SECONDS = 10.0
_POLL_SECONDS = 0.2
#: What the shortest body of each endpoint is; an engine with none of them gets no row.
_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Say yes."}],
        "max_tokens": 1,
    },
    "/v1/completions": {"prompt": "yes", "max_tokens": 1},
    "/v1/embeddings": {"input": "yes"},
}
_HOUR = 3600


def look(target: Target, *, row_seconds: float) -> Iterator[Finding]:
    """Whether it is ready, and what became of a row in each model whose engine runs."""
    root = target.url.removesuffix("/v1")
    try:
        report = httpx.get(f"{root}/readyz", timeout=_SECONDS).json()
    except (httpx.HTTPError, ValueError) as error:
        text = f"it does not answer at {root} ({type(error).__name__})"
        yield Finding("gateway", Level.FAILED, text, "Start it, or correct OPENAI_BASE_URL.")
        return
    yield _readiness(report)
    gateway = Gateway(target, patience=_SECONDS)
    try:
        for model in gateway.get("models")["data"]:
            if model.get("state") == "warm":
                yield _row(gateway, model, row_seconds)
            else:
                text = f"{model['id']} has no engine that runs ({model.get('state')})"
                do = "Nothing to do: it starts with its first row."
                yield Finding("rows", Level.SKIPPED, text, do)
    except BatchyardError as error:
        yield Finding("gateway", Level.FAILED, str(error), "Check OPENAI_API_KEY: batchyard keys")
    finally:
        gateway.close()


def _readiness(report: dict[str, str]) -> Finding:
    if report.get("status") == "ok":
        return Finding("gateway", Level.OK, "it is ready")
    services = {name: state for name, state in report.items() if name != "status"}
    away = ", ".join(f"{name} {state}" for name, state in services.items() if state != "ok")
    return Finding("gateway", Level.FAILED, f"it is not ready: {away}", "See the lines of these.")


def _row(gateway: Gateway, model: dict[str, Any], seconds: float) -> Finding:
    endpoint = next((one for one in model["endpoints"] if one in _BODIES), None)
    name = model["id"]
    if endpoint is None:
        text = f"{name} serves only {', '.join(model['endpoints'])}"
        return Finding("rows", Level.SKIPPED, text, "Send it a row of your own.")
    body = {"model": name, **_BODIES[endpoint]}
    line = {"custom_id": "doctor", "method": "POST", "url": endpoint, "body": body}
    began = time.monotonic()
    batch = _ended(gateway, endpoint, json.dumps(line).encode() + b"\n", seconds)
    took = time.monotonic() - began
    counts = batch["request_counts"]
    if batch["status"] == Status.COMPLETED and counts["completed"] == 1:
        return Finding("rows", Level.OK, f"{name} answered a row in {took:.1f} s")
    if batch["status"] in FINAL:
        text = f"{name}: the batch {batch['id']} ended as {batch['status']}, without an answer"
        do = f"batchyard show {batch['id']}; batchyard fetch {batch['id']} --failed"
        return Finding("rows", Level.FAILED, text, do)
    gateway.post(f"batches/{batch['id']}/cancel")
    text = f"{name} has not answered a row within {seconds:.0f} s; it was {batch['status']}"
    return Finding("rows", Level.FAILED, text, f"batchyard explain {batch['id']}")


def _ended(gateway: Gateway, endpoint: str, line: bytes, seconds: float) -> dict[str, Any]:
    """The row's batch once it has ended, or when its time is over."""
    # Nobody needs the files afterwards.
    expiry = {"anchor": "created_at", "seconds": _HOUR}
    file = gateway.post_form(
        "files",
        lambda: {
            "files": {"file": ("doctor.jsonl", line)},
            "data": {
                "purpose": "batch",
                **{f"expires_after[{name}]": value for name, value in expiry.items()},
            },
        },
    )
    batch = gateway.post(
        "batches",
        {
            "input_file_id": file["id"],
            "endpoint": endpoint,
            "completion_window": "24h",
            "priority": 9,
            "metadata": {"made_by": "batchyard doctor"},
            "output_expires_after": expiry,
        },
    )
    deadline = time.monotonic() + seconds
    while batch["status"] not in FINAL and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        batch = gateway.get(f"batches/{batch['id']}")
    return batch
