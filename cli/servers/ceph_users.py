"""The users of a private Ceph's S3, made by radosgw-admin.

A user is written as metadata from a file: a key never stands on a command line.
"""

import json
import secrets
from typing import NamedTuple

from cli.servers.ceph_cluster import GATEWAY, CephCluster
from cli.servers.process import write_private_file

#: Ceph's number for a user who may create no bucket.
_NO_BUCKETS = -1


class S3User(NamedTuple):
    """A user and its one pair of keys."""

    id: str
    access_key: str
    secret_key: str
    max_buckets: int = _NO_BUCKETS


class CephUsers:
    """The S3 users of one cluster; its gateway has to be running."""

    def __init__(self, cluster: CephCluster) -> None:
        self._cluster = cluster

    def ids(self) -> set[str]:
        """Every user's id."""
        return set(json.loads(self._admin("metadata", "list", "user")))

    def put(self, user: S3User) -> None:
        """Create the user, or give it these keys and no others."""
        draft = self._cluster.directory / f"user-{secrets.token_hex(4)}.json"
        write_private_file(draft, json.dumps(_metadata(user)))
        try:
            self._admin("metadata", "put", f"user:{user.id}", "--infile", str(draft))
        finally:
            draft.unlink()

    def delete(self, user_id: str) -> None:
        """Remove the user and its keys."""
        self._admin("user", "rm", f"--uid={user_id}")

    def _admin(self, *arguments: str) -> str:
        return self._cluster.run("radosgw-admin", "-n", GATEWAY, *arguments)


def _metadata(user: S3User) -> dict[str, object]:
    return {
        "key": f"user:{user.id}",
        "ver": {"tag": user.id, "ver": 1},
        "mtime": "1970-01-01T00:00:00Z",
        "data": {
            "user_id": user.id,
            "display_name": user.id,
            "email": "",
            "suspended": 0,
            "max_buckets": user.max_buckets,
            "subusers": [],
            "keys": [
                {
                    "user": user.id,
                    "access_key": user.access_key,
                    "secret_key": user.secret_key,
                }
            ],
            "swift_keys": [],
            "caps": [],
            "op_mask": "read, write, delete",
        },
    }
