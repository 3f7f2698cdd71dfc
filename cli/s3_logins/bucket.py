"""The policy of a private Ceph's bucket, made to match the users that there are."""

import hashlib
import json

from cli.s3_logins.policy import bucket_policy
from cli.servers import CephS3
from cli.servers.ceph import LANE_USER, SERVICE_USER
from cli.servers.process import write_private_file
from shared.storage import Storage

#: Before the tenant's name in Ceph: no tenant's login can be one of our own users.
USER_PREFIX = "tenant-"


def tenants(server: CephS3) -> dict[str, str]:
    """The users that are tenants' logins, by tenant."""
    return {
        user.removeprefix(USER_PREFIX): user
        for user in server.users.ids()
        if user.startswith(USER_PREFIX)
    }


async def apply_policy(server: CephS3, storage: Storage, tenant_prefix: str) -> None:
    """Give each login its rights to the bucket. If this is cut short, the next call repairs it."""
    policy = bucket_policy(
        tenants(server), SERVICE_USER, storage.bucket, tenant_prefix, lane_user=LANE_USER
    )
    await storage.set_policy(policy)


async def apply_own_policy(server: CephS3, storage: Storage, tenant_prefix: str) -> None:
    """`apply_policy`, unless an earlier start has done it: asking Ceph for users takes a second."""
    own = bucket_policy({}, SERVICE_USER, storage.bucket, tenant_prefix, lane_user=LANE_USER)
    digest = hashlib.sha256(json.dumps(own).encode()).hexdigest()
    done = server.directory / "policy.sha256"
    if not done.exists() or done.read_text() != digest:
        await apply_policy(server, storage, tenant_prefix)
        write_private_file(done, digest)
