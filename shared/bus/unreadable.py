"""Lets one message with unreadable properties through, where pamqp would end the connection.

RabbitMQ passes on properties that it does not look into, so any tenant can send texts that are not
UTF-8. The connection would break at each of their deliveries, and take everybody's with it.
"""

from typing import Any

from pamqp.commands import Basic
from pamqp.header import ContentHeader

#: The header under which unreadable properties lie as the bytes that they came in.
UNREADABLE = "x-unreadable-properties"
_MODES = (None, 1, 2)
_as_it_was = ContentHeader.unmarshal


def install() -> None:
    """Change pamqp for this process; to do it again changes nothing."""
    ContentHeader.unmarshal = _forgiving  # type: ignore[method-assign]  # what pamqp calls by name


def _forgiving(self: ContentHeader, data: bytes) -> None:
    try:
        _as_it_was(self, data)
        is_readable = self.properties.delivery_mode in _MODES
    except (ValueError, OverflowError, OSError, IndexError, KeyError, TypeError):
        # By then the class and the size, which come first, have been read.
        is_readable = False
    if not is_readable:
        told: dict[str, Any] = {UNREADABLE: bytearray(data)}
        self.properties = Basic.Properties(headers=told)
