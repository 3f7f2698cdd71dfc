"""One line that says how far a batch is. Pure."""

from collections.abc import Mapping
from typing import Any

from cli.client.pace import Pace
from cli.client.words import eta_text, rate_text, rows_text
from shared.lifecycle import FINAL


def waiting_text(explanation: Mapping[str, Any], now: float) -> str:
    """What a batch waits for, and when the gateway thinks that it will be done."""
    waits = explanation.get("waits_for")
    parts = [waits["message"].rstrip(".")] if waits else []
    if predicted := explanation.get("predicted"):
        parts.append(f"{_range_text(predicted, now)} (predicted)")
    return ", ".join(parts)


def progress_text(
    name: str, batch: Mapping[str, Any], pace: Pace, now: float, why: str = "", *, at: float
) -> str:
    """One line: where the batch is, how fast it goes, how long it takes, and what failed.

    `now` is the time of the pace, and `at` the same in Unix seconds.
    """
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
            parts += _eta(batch, pace, now, at)
        elif why:
            parts.append(why)
    return ", ".join(parts)


def _eta(batch: Mapping[str, Any], pace: Pace, now: float, at: float) -> list[str]:
    """The gateway's range, or that of the pace seen from here."""
    if predicted := batch.get("predicted"):
        return [_range_text(predicted, at)]
    left = pace.seconds_left(batch["request_counts"]["total"], now)
    return [eta_text(*left)] if left else []


def _range_text(predicted: Mapping[str, Any], at: float) -> str:
    return eta_text(*(max(1, predicted[end] - at) for end in ("finish_at", "finish_p80_at")))
