"""The idempotency key by which the same `run` finds its batch again. Pure."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def run_key(url: str, digest: str, options: Mapping[str, Any]) -> str:
    """The same for the same gateway, file content and options that the batch is created with."""
    parts = [url.rstrip("/"), digest, options]
    text = json.dumps(parts, sort_keys=True)
    return f"run-{hashlib.sha256(text.encode()).hexdigest()[:40]}"
