"""What the bodies of all endpoints have in common, and how one is read. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from shared.openai.bodies.fields import CacheSalt, Int64
from shared.openai.bodies.refusals import Refusal, first_refusal


class Body(BaseModel):
    """What the bodies of all endpoints have in common."""

    model_config = ConfigDict(extra="ignore", populate_by_name=False)
    #: Fields that `conflicts` compares with others.
    compared: ClassVar[frozenset[str]] = frozenset()
    #: A field that brings other rules with it: the engine alone judges the bodies that have it.
    exempting: ClassVar[str] = ""
    #: Fields of the engine that a request may not have unless an operator opens them. They reach
    #: past the request itself, or cost others something that no limit counts.
    closed: ClassVar[frozenset[str]] = frozenset(
        {
            "cache_salt",
            "ec_transfer_params",
            "kv_transfer_params",
            "media_io_kwargs",
            "mm_processor_kwargs",
            "priority",
            "request_id",
            "session_id",
            "vllm_xargs",
        }
    )
    #: Fields that a request may have and that say nothing about the answer.
    unread: ClassVar[frozenset[str]] = frozenset(
        {
            "metadata",
            "prompt_cache_key",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "store",
            "stream",
            "stream_options",
        }
    )

    model: str | None = None
    user: str | None = None
    request_id: str = ""
    priority: Int64 = 0
    cache_salt: CacheSalt | None = None

    @classmethod
    def open_fields(cls) -> frozenset[str]:
        """The fields that a request may have."""
        return (cls.unread | cls.model_fields.keys()) - cls.closed

    def conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:  # noqa: ARG002  # subclasses do
        """What is wrong with the fields together; `raw` is the body as it came."""
        yield from ()


def read_body(model: type[Body], body: Any) -> Body | Refusal | None:
    """The body as its model reads it, or why the engine would refuse it.

    None where the engine has rules for it that are not known here.
    """
    if not isinstance(body, dict):
        return Refusal(None, "Input should be an object")
    if model.exempting and body.get(model.exempting, False) is not False:
        return None
    try:
        found = model.model_validate(body)
    except ValidationError as error:
        return first_refusal(error, body, ())
    return next(found.conflicts(body), found)
