"""Sends a file to the gateway in constant memory: at once, or in parts if it is large."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli.client.gateway import Gateway

#: A file that is larger goes in parts of this size, the largest that a gateway takes. If the
#: connection breaks, one part is sent again.
PART_BYTES = 64 * 1024 * 1024
_MIME = "application/jsonl"
#: Of files that a gateway would keep for ever.
_KEPT_SECONDS = 2_592_000


def upload(
    gateway: Gateway,
    path: Path,
    *,
    purpose: str = "batch",
    report: Callable[[int], None] = lambda _: None,
    part_bytes: int = PART_BYTES,
) -> dict[str, Any]:
    """The file object of the uploaded file. `report` gets the number of bytes sent so far."""
    size = path.stat().st_size
    if size <= part_bytes:
        return gateway.post_form(
            "files",
            lambda: {
                "data": {"purpose": purpose, **_expiry(purpose)},
                "files": {"file": (path.name, _Range(path, 0, size, report), _MIME)},
            },
        )
    params: dict[str, Any] = {
        "bytes": size,
        "filename": path.name,
        "mime_type": _MIME,
        "purpose": purpose,
    }
    if purpose != "batch":
        params["expires_after"] = {"anchor": "created_at", "seconds": _KEPT_SECONDS}
    upload_id = gateway.post("uploads", params)["id"]
    parts = [
        _upload_part(gateway, upload_id, path, start, min(start + part_bytes, size), report)
        for start in range(0, size, part_bytes)
    ]
    file: dict[str, Any] = gateway.post(f"uploads/{upload_id}/complete", {"part_ids": parts})[
        "file"
    ]
    return file


def _expiry(purpose: str) -> dict[str, str]:
    """The form fields that let a file expire, unless it does so by itself."""
    if purpose == "batch":
        return {}
    return {
        "expires_after[anchor]": "created_at",
        "expires_after[seconds]": str(_KEPT_SECONDS),
    }


def _upload_part(
    gateway: Gateway,
    upload_id: str,
    path: Path,
    start: int,
    end: int,
    report: Callable[[int], None],
) -> str:
    part = gateway.post_form(
        f"uploads/{upload_id}/parts",
        lambda: {"files": {"data": (path.name, _Range(path, start, end, report), _MIME)}},
    )
    part_id: str = part["id"]
    return part_id


class _Range(io.RawIOBase):
    """Bytes [start, end) of a file, read as if they were a file."""

    def __init__(self, path: Path, start: int, end: int, report: Callable[[int], None]) -> None:
        self._file = path.open("rb")
        self._start, self._end, self._report = start, end, report
        self._file.seek(start)

    def read(self, size: int = -1) -> bytes:
        left = self._end - self._file.tell()
        chunk = self._file.read(left if size < 0 else min(size, left))
        self._report(self._file.tell())
        return chunk

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: self._start, os.SEEK_CUR: self._file.tell(), os.SEEK_END: self._end}
        return self._file.seek(base[whence] + offset) - self._start

    def tell(self) -> int:
        return self._file.tell() - self._start

    def close(self) -> None:
        self._file.close()
        super().close()
