"""Which scope of a key each call needs. Pure."""

from shared.openai.endpoints import ENDPOINTS
from shared.scopes import Scope

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_WEBHOOKS = "/v1/webhook_"
_FLEET = "/v1/admin/"


def needed_scope(method: str, path: str) -> Scope:
    """The scope that a key must have for this call."""
    if path.startswith(_FLEET):
        return Scope.OPERATOR
    if method in _READS:
        return Scope.READ
    if path in ENDPOINTS:
        return Scope.LIVE
    return Scope.ADMIN if path.startswith(_WEBHOOKS) else Scope.SUBMIT
