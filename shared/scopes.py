"""What an API key may be used for. Pure."""

from collections.abc import Iterable
from enum import StrEnum

from shared.errors import InvalidInputError


class Scope(StrEnum):
    """A kind of calls that a key may be allowed to make."""

    #: Reading everything that the tenant has: batches, events, results, files, models, limits.
    READ = "read"
    #: Uploading and deleting files; creating, changing, pausing and cancelling batches.
    SUBMIT = "submit"
    #: Live calls, which models answer at once.
    LIVE = "live"
    #: Changing webhook endpoints, which send the tenant's events elsewhere.
    ADMIN = "admin"
    #: Reading what the whole fleet does, of all tenants: numbers and reasons, never contents.
    OPERATOR = "operator"


#: What a key may do of which nobody said otherwise. The work of others is never in it.
DEFAULT_SCOPES = (Scope.READ, Scope.SUBMIT, Scope.LIVE, Scope.ADMIN)


def scopes_of(names: Iterable[str]) -> tuple[Scope, ...]:
    """These scopes in their usual order, each once. Raises InvalidInputError."""
    wanted = set(names)
    if unknown := sorted(wanted - set(Scope)):
        raise InvalidInputError(
            f"--scope {unknown[0]}: there is no such scope. Choose from {', '.join(Scope)}."
        )
    if not wanted:
        raise InvalidInputError(f"Name at least one scope: {', '.join(Scope)}.")
    return tuple(scope for scope in Scope if scope in wanted)
