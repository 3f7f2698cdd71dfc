"""`batchyard whoami`: which gateway a command speaks to, as whom, and within which limits."""

from typing import Any

from cli.client.options import AsJson, Context, connected
from cli.client.output import Record, details, print_record


def whoami(context: Context = None, *, as_json: AsJson = False) -> None:
    """Say which gateway and tenant your key is for, and what is used of your limits."""
    with connected(context) as gateway:
        limits = gateway.get("limits")
        url = gateway.target.url
    print_record({"url": url, **limits}, _text, as_json=as_json)


def _text(found: Record) -> str:
    pairs = [("gateway", found["url"]), ("tenant", found["tenant"])]
    pairs.append(("models", " ".join(found["models"])))
    return details([*pairs, *(pair for name in found for pair in _uses(name, found[name]))])


def _uses(name: str, limit: Any) -> list[tuple[str, str]]:
    """What is used of a limit, in words; a limit of 0 is none."""
    if isinstance(limit, dict):
        most = f"{limit['limit']:,}" if limit["limit"] else "any number"
        return [(name.replace("_", " "), f"{limit['used']:,} of {most}")]
    if isinstance(limit, list) and limit and isinstance(limit[0], dict):
        return [
            pair for one in limit if one["used"] for pair in _uses(f"{name} of {one['model']}", one)
        ]
    return []
