"""Errors by blame: the class says whose move it is, the message says what and where. Pure."""


class BatchyardError(Exception):
    """Everything that Batchyard raises on purpose."""


class SetupError(BatchyardError):
    """Something the operator must mend; the message says what and how."""


class CallerError(BatchyardError):
    """The client sent something wrong; trying again unchanged is useless."""


class InvalidInputError(CallerError):
    """A value that breaks the contract; `param` names the field, `code` is OpenAI's word for it."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class AuthenticationError(CallerError):
    """No key, or a key that is not known."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class NotFoundError(CallerError):
    """The object does not exist, or belongs to another tenant, which looks the same."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ConflictError(CallerError):
    """The object is in a state, or was created with a body, that rules the call out."""


class TooLargeError(CallerError):
    """More bytes than the limit allows."""


class LimitError(CallerError):
    """The tenant has reached a limit; `kind` is what ran out, `code` OpenAI's word for the limit.

    `wait_seconds` is when the same call may work again; None if waiting alone does not help.
    """

    def __init__(
        self, message: str, *, kind: str, code: str, wait_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.wait_seconds = wait_seconds


class TransientError(BatchyardError):
    """The world is briefly broken; the same call may work later."""


class InvalidTransitionError(BatchyardError):
    """An event that the batch's status does not allow: late, or repeated."""

    def __init__(self, batch_id: str, event: str, status: str) -> None:
        super().__init__(f"Batch {batch_id} is {status}: {event} cannot happen to it.")
        self.batch_id = batch_id
        self.event = event
        self.status = status
