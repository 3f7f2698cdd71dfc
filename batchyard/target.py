"""Which gateway is asked, and with which key."""

from cli.client.contexts import Target, checked_key, checked_url, choose
from shared.errors import InvalidInputError


def target_of(
    base_url: str | None = None, api_key: str | None = None, context: str | None = None
) -> Target:
    """The gateway that is named, or the one that the command line would use.

    Raises InvalidInputError and NotFoundError.
    """
    if base_url is None and api_key is None:
        return choose(context)
    if base_url is None or api_key is None:
        raise InvalidInputError("base_url and api_key are given together, or neither.")
    key = checked_key(api_key, "api_key")
    return Target(base_url, checked_url(base_url, "base_url"), key)
