"""One line that says how far a batch is. Pure."""

from collections.abc import Mapping
from typing import Any

from cli.client.pace import Pace
from cli.client.words import eta_text, rate_text, rows_text
from shared.lifecycle import FINAL

#: The gateway's predictions before anything runs may be wrong by this factor.
_DOUBT = 3


def waiting_text(explanation: Mapping[str, Any], now: float) -> str:
    """What a batch waits for, and when the gateway thinks that it will be done."""
    waits = explanation.get("waits_for")
    parts = [waits["message"].rstrip(".")] if waits else []
    if predicted := explanation.get("predicted"):
        seconds = max(1, predicted["finish_at"] - now)
        parts.append(f"{eta_text(seconds / _DOUBT, seconds * _DOUBT)} (predicted)")
    return ", ".join(parts)


def progress_text(
    name: str, batch: Mapping[str, Any], pace: Pace, now: float, why: str = ""
) -> str:
    """One line: where the batch is, how fast it goes, how long it takes, and what failed."""
    counts = batch["request_counts"]
    parts = [f"{name}: {batch['status']}"]
    if counts["total"]:
        parts.append(f"{rows_text(batch)} rows")
    if counts["failed"]:
        parts.append(f"{counts['failed']} failed")
    if batch.get("paused"):
        parts.append("paused")
    if batch["status"] not in FINAL:
        if rate := pace.rate(now):
            parts.append(rate_text(rate))
            parts += _eta(batch, pace, now)
        elif why:
            parts.append(why)
    return ", ".join(parts)


def _eta(batch: Mapping[str, Any], pace: Pace, now: float) -> list[str]:
    """From the shortest to the longest of the estimates, the gateway's among them."""
    left = pace.seconds_left(batch["request_counts"]["total"], now)
    gateways = batch.get("remaining_seconds")
    found = [*(left or ()), *([] if gateways is None else [float(gateways)])]
    return [eta_text(min(found), max(found))] if found else []
