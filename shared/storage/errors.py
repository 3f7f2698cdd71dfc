"""The errors of reading and writing objects, and how S3's own errors become ours."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Literal, NamedTuple, TypeVar

import urllib3
from minio.error import InvalidResponseError, S3Error, ServerError

from shared.errors import BatchyardError, NotFoundError, TransientError

T = TypeVar("T")

NETWORK_ERRORS = (urllib3.exceptions.HTTPError, OSError)
#: S3's own codes for "not now"; operators free the space that is missing.
_BUSY = {
    "InternalError",
    "OperationAborted",
    "QuotaExceeded",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
}
#: S3's own codes for a login that it refuses. Operators fix that, and calls wait for it.
_LOGIN_REFUSED = {
    "AccessDenied",
    "AccountProblem",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
}
_ABSENT = {"NoSuchBucket", "NoSuchKey", "NoSuchVersion"}
_CHANGED = "PreconditionFailed"
_SERVER_ERROR = 500


class ChangedError(NotFoundError):
    """The object is not the one whose ETag was asked for."""


class ForbiddenError(NotFoundError):
    """The server does not let us read the object; some servers say this of a missing one."""


class LoginRefusedError(TransientError):
    """S3 refuses our login for a call; the call works once the operator has fixed that."""


class StorageRefusedError(BatchyardError):
    """S3 refuses a call and would refuse it again; `code` is S3's own code for the reason."""

    def __init__(self, code: str) -> None:
        super().__init__(f"S3 refuses the call: {code}.")
        self.code = code


def why_unreadable(error: NotFoundError) -> Literal["changed", "forbidden", "missing"]:
    """The reason why an object cannot be read."""
    match error:
        case ChangedError():
            return "changed"
        case ForbiddenError():
            return "forbidden"
        case _:
            return "missing"


class Place(NamedTuple):
    """The location of an object; the newest version if none is named."""

    bucket: str
    key: str
    version_id: str | None


@contextmanager
def errors_of(place: Place) -> Iterator[None]:
    """Raise our errors for an object that a tenant may have named, with any name and version."""
    try:
        yield
    except ValueError as error:
        # The client refuses the name before it asks S3.
        raise NotFoundError(
            f"No object can be called {place.key!r} in {place.bucket!r}."
        ) from error
    except S3Error as error:
        code, status = error.code or "", error.response.status
        if code == "AccessDenied":
            raise ForbiddenError(f"S3 does not let us read {place.key}.") from error
        # A version id that the server cannot even parse is one that does not exist. Of an object
        # that has no such version, Ceph says NoSuchKey without naming it.
        if place.version_id and code in (*_ABSENT, "InvalidArgument", "MethodNotAllowed"):
            raise NotFoundError(
                f"S3 has no version '{place.version_id}' of object {place.key}."
            ) from error
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise ChangedError(f"The object {place.key} is shorter than it was.") from error
        if status < _SERVER_ERROR and code not in {*_ABSENT, *_BUSY, *_LOGIN_REFUSED, _CHANGED}:
            raise ForbiddenError(f"S3 refuses to read {place.key}: {code or status}.") from error
        raise


def translated(function: Callable[[], T]) -> T:
    try:
        return function()
    except S3Error as error:
        raise _ours(error) from error
    except ServerError as error:
        raise TransientError(f"S3 answers with status {error.status_code}.") from error
    except InvalidResponseError as error:
        raise TransientError(f"Something other than S3 answers: {error}") from error
    except NETWORK_ERRORS as error:
        raise TransientError(f"S3 cannot be reached: {error}") from error


def _ours(error: S3Error) -> BatchyardError:
    """The error of ours for an error of S3."""
    code, status = error.code, error.response.status
    if code in _ABSENT:
        # Ceph does not always name it.
        return NotFoundError(f"S3 has no object {error.object_name or 'of that name'}.")
    if code == _CHANGED:
        return ChangedError(f"The object {error.object_name} was changed.")
    if code in _LOGIN_REFUSED:
        return LoginRefusedError(f"S3 refuses our login: {code}.")
    if code in _BUSY or status >= _SERVER_ERROR:
        return TransientError(f"S3: {code or status}")
    return StorageRefusedError(code or str(status))
