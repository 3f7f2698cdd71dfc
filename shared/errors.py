"""Errors by blame: the class says who must act, the message says what is wrong and where. Pure."""


class BatchyardError(Exception):
    """The base of all errors that Batchyard raises deliberately."""


class SetupError(BatchyardError):
    """Something that the operator must fix. The message says what and how."""


class CallerError(BatchyardError):
    """The client sent something wrong. Retrying the same request is useless."""


class InvalidInputError(CallerError):
    """An invalid value. `param` names the field, and `code` is OpenAI's code for the error."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class AuthenticationError(CallerError):
    """No API key, or an unknown one."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class PermissionDeniedError(CallerError):
    """The API key is known, and may not be used for this."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class NotFoundError(CallerError):
    """The object does not exist, or it belongs to another tenant, which looks the same."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ConflictError(CallerError):
    """The object's state, or the body that it was created with, does not allow the call."""


class TooLargeError(CallerError):
    """More bytes than the limit allows."""


class LimitError(CallerError):
    """The tenant has reached a limit. `kind` is what ran out, and `code` is OpenAI's code for it.

    After `wait_seconds` the same call may work again; None if waiting alone does not help.
    """

    def __init__(
        self, message: str, *, kind: str, code: str, wait_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.wait_seconds = wait_seconds


class BrokenObjectError(BatchyardError):
    """An object in S3 is not what was written: bytes are missing or wrong. `reason` says how."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"The object {key} is damaged: {reason}.")
        self.key = key
        self.reason = reason


class TransientError(BatchyardError):
    """A temporary problem. The same call may work later."""


class NoEngineError(TransientError):
    """No engine of the model takes live calls yet; one has been asked for."""


class DeadlineError(BatchyardError):
    """A live call could not be answered by its deadline."""


class EngineDiedError(BatchyardError):
    """The engine died with a live call in it, which may be the reason."""


class InvalidTransitionError(BatchyardError):
    """An event that the batch's status does not allow, because it is late or repeated."""

    def __init__(self, batch_id: str, event: str, status: str) -> None:
        super().__init__(f"Batch {batch_id} is {status}, which does not allow {event}.")
        self.batch_id = batch_id
        self.event = event
        self.status = status
