"""Lets a message with unreadable properties through, for which pamqp would end the connection.

RabbitMQ does not check all properties that it passes on, so any tenant can send strings that are
not UTF-8. Each delivery of such a message would break the connection for everybody.
"""

from typing import Any

from pamqp.commands import Basic
from pamqp.header import ContentHeader

#: The header that holds unreadable properties as the bytes that were received.
UNREADABLE = "x-unreadable-properties"
_MODES = (None, 1, 2)
_as_it_was = ContentHeader.unmarshal


def install() -> None:
    """Change pamqp in this process. Repeating it is harmless."""
    ContentHeader.unmarshal = _forgiving  # type: ignore[method-assign]  # what pamqp calls by name


def _forgiving(self: ContentHeader, data: bytes) -> None:
    try:
        _as_it_was(self, data)
        is_readable = self.properties.delivery_mode in _MODES
    except (ValueError, OverflowError, OSError, IndexError, KeyError, TypeError):
        # The class and the size come first and have been read by now.
        is_readable = False
    if not is_readable:
        headers: dict[str, Any] = {UNREADABLE: bytearray(data)}
        self.properties = Basic.Properties(headers=headers)
