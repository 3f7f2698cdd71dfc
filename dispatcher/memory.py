"""How many messages the dispatcher may hold without being killed for its memory."""

from pathlib import Path

from shared.bus.topology import MAX_MESSAGE_BYTES

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
#: Of the container's memory, what messages in hand may take if all of them are as large as can be.
_MESSAGES_SHARE = 0.5


def memory_limit(path: Path = _CGROUP_LIMIT) -> int | None:
    """The bytes that this process's container may use; None if they are not limited."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def messages_within(wanted: int, limit: int | None) -> int:
    """As many messages as are wanted, or fewer if the largest ones would not fit into memory."""
    if limit is None:
        return wanted
    return max(1, min(wanted, int(limit * _MESSAGES_SHARE) // MAX_MESSAGE_BYTES))
