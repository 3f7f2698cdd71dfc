"""Gives a file of the operator's another text, and leaves what else it is as it was."""

import errno
import os
import stat
import tempfile
from pathlib import Path

#: What says that another file cannot take its place here: the folder takes none, the owner cannot
#: be kept, or the file alone is mounted.
_IN_PLACE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV}


class EditedError(Exception):
    """The file does not say any more what it is known to have said."""


def rewrite(path: Path, known: str, text: str) -> None:
    """Let the file, which said `known`, say `text`; its owner, mode and links stay.

    It has either text at any time, unless it can only be written in place. Raises EditedError, or
    OSError; the file then stays as it is.
    """
    # A link goes on showing where it does.
    target = path.resolve()
    encoded = text.encode()
    with target.open("r+b") as file:
        if file.read() != known.encode():
            raise EditedError
        if _has_replaced(target, encoded):
            return
        # On a full disk, this fails before anything is lost.
        os.posix_fallocate(file.fileno(), 0, len(encoded))
        os.pwrite(file.fileno(), encoded, 0)
        os.ftruncate(file.fileno(), len(encoded))
        os.fsync(file.fileno())


def _has_replaced(target: Path, encoded: bytes) -> bool:
    """Put a new file in its place, where that changes nothing but its text."""
    was = target.stat()
    if was.st_nlink > 1:
        return False
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".tuned-", delete=False) as file:
            new = Path(file.name)
            try:
                file.write(encoded)
                file.flush()
                os.fchown(file.fileno(), was.st_uid, was.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(was.st_mode))
                os.fsync(file.fileno())
                new.replace(target)
            finally:
                new.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in _IN_PLACE:
            return False
        raise
    return True
