"""What the Redis user of lane jobs and waves may do: run their scripts, on the keys that these use.

Redis checks each command inside a script against the user's rights, so a lane job can neither read
API keys and signing secrets, nor end a batch, nor empty the database.
"""

import re
from collections.abc import Iterable

from shared.state.script_texts import texts

#: The name of the user.
LANE_USER = "lane"
#: The scripts that lane jobs and waves run; their commands are those of the user.
LANE_SCRIPTS = (
    "beat",
    "begin",
    "claim",
    "claim_suspects",
    "close_job",
    "commit",
    "count_numbers",
    "fail_engine",
    "lose_input",
    "put_back",
    "release",
    "renew",
    "show_doors",
    "tell_ending",
)
#: What they call besides scripts, and what a connection needs.
_OTHER_COMMANDS = ("evalsha", "hello", "ping", "script|load", "select", "subscribe", "unsubscribe")
#: Keys, as docs/redis-keys.md names them. The last words of a name may differ from batch to batch.
_WRITTEN = (
    "batch:*",
    "begun:*",
    "changes:*",
    "commits:*",
    "dead-rows",
    "dead-rows-since",
    "doubts:*",
    "ending:*",
    "engine-deaths:*",
    "engine-seconds:*",
    "enqueued:*",
    "epochs:*",
    "events:*",
    "garbage",
    "inflight:*",
    "jobs:*",
    "kept:*",
    "lane:*",
    "outbox:events",
    "pace:*",
    "parts:*",
    "pending:*",
    "progress",
    "progress-late",
    "reasons:*",
    "status:*",
    "strikes:*",
    "totals",
)
_READ = ("engines", "plan:*", "rebuilding", "tenants", "weights")
_CHANNELS = ("bell:*", "watch:*")
_CALL = re.compile(r"redis\.call\('(\w+)'")


def lane_rules(namespace: str) -> str:
    """The user's rights as words of Redis's ACL, without its password. Needs Redis 7."""
    words = [
        "resetkeys",
        "resetchannels",
        "-@all",
        # Scripts name the namespace as their only key.
        f"~{namespace}",
        *(f"~{namespace}{key}" for key in _WRITTEN),
        *(f"%R~{namespace}{key}" for key in _READ),
        *(f"&{namespace}{channel}" for channel in _CHANNELS),
        *(f"+{command}" for command in sorted({*_OTHER_COMMANDS, *_commands(LANE_SCRIPTS)})),
    ]
    return " ".join(words)


def _commands(scripts: Iterable[str]) -> set[str]:
    """The commands in the scripts and in their libraries."""
    return {found.lower() for name in scripts for found in _CALL.findall(texts()[name])} | {
        # What Python calls by itself.
        "zcard",
        "hgetall",
        "hmget",
    }
