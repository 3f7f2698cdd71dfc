"""Which scope of a key each call needs. Pure."""

from collections.abc import Collection

from shared.openai.endpoints import ENDPOINTS
from shared.scopes import Scope

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_WEBHOOKS = "/v1/webhook_"
_FLEET = "/v1/admin/"
#: A tenant reads its own here, and an operator what all have.
_ORGANIZATION = "/v1/organization/"


def needed_scope(method: str, path: str, has: Collection[Scope] = ()) -> Scope:
    """The scope that a key must have for this call; `has` are those that it has."""
    if path.startswith(_FLEET):
        return Scope.OPERATOR
    if path.startswith(_ORGANIZATION) and Scope.OPERATOR in has:
        return Scope.OPERATOR
    if method in _READS:
        return Scope.READ
    if path in ENDPOINTS:
        return Scope.LIVE
    return Scope.ADMIN if path.startswith(_WEBHOOKS) else Scope.SUBMIT
