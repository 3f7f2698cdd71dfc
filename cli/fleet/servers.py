"""RabbitMQ, Redis and S3 of the fleet: the user's own if named, private ones otherwise."""

from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from cli.fleet.credentials import SERVICE_USER, TENANT, Credentials
from cli.servers import (
    CephS3,
    RabbitMQ,
    Redis,
    User,
    install,
    missing,
    missing_for_engine,
)
from cli.servers.process import Child, all_in_turn
from shared.bus.topology import DEMO_QUEUES, Bounds


class OwnServers(NamedTuple):
    """Addresses of the user's own servers; None for each that we start."""

    amqp_url: str | None = None
    redis_url: str | None = None
    s3_endpoint: str | None = None
    s3_access_key: str | None = None
    s3_secret_key: str | None = None
    #: The logins of lane jobs at one's own servers; without them, lane jobs have those above.
    lane_redis_url: str | None = None
    lane_s3_access_key: str | None = None
    lane_s3_secret_key: str | None = None


class Addresses(NamedTuple):
    """The addresses of all three, for the fleet's processes, for lane jobs and for the tenant."""

    amqp_url: str
    tenant_amqp_url: str
    redis_url: str
    s3_endpoint: str
    s3_access_key: str
    s3_secret_key: str
    lane_redis_url: str
    lane_s3_access_key: str
    lane_s3_secret_key: str


class Servers:
    """Starts all servers that are not the user's own, together; each needs some seconds."""

    def __init__(self, run_dir: Path, own: OwnServers, credentials: Credentials) -> None:
        service = User(SERVICE_USER, credentials.service_password, tenant=False)
        tenant = User(
            TENANT, credentials.tenant_password, tenant=True, bounds=Bounds(queues=DEMO_QUEUES)
        )
        self.rabbitmq = None if own.amqp_url else RabbitMQ(run_dir / "rabbitmq", [service, tenant])
        self.redis = (
            None
            if own.redis_url
            else Redis(
                run_dir / "redis", credentials.redis_password, credentials.lane_redis_password
            )
        )
        self.ceph = (
            None
            if own.s3_endpoint
            else CephS3(
                run_dir / "s3",
                credentials.s3_access_key,
                credentials.s3_secret_key,
                lane_keys=(credentials.lane_s3_access_key, credentials.lane_s3_secret_key),
            )
        )
        # The environment may have keys for another server than ours.
        keys = (own.s3_endpoint and own.s3_access_key) or credentials.s3_access_key
        secret = (own.s3_endpoint and own.s3_secret_key) or credentials.s3_secret_key
        lane_key, lane_secret = (
            (credentials.lane_s3_access_key, credentials.lane_s3_secret_key)
            if self.ceph
            else (own.lane_s3_access_key or keys, own.lane_s3_secret_key or secret)
        )
        self.addresses = Addresses(
            amqp_url=own.amqp_url or self._broker(service),
            tenant_amqp_url=own.amqp_url or self._broker(tenant),
            redis_url=own.redis_url or (self.redis.url if self.redis else ""),
            s3_endpoint=own.s3_endpoint or (self.ceph.endpoint if self.ceph else ""),
            s3_access_key=keys,
            s3_secret_key=secret,
            lane_redis_url=(
                self.redis.lane_url if self.redis else own.lane_redis_url or own.redis_url or ""
            ),
            lane_s3_access_key=lane_key,
            lane_s3_secret_key=lane_secret,
        )

    def shared_logins(self, own: OwnServers) -> list[str]:
        """The servers of one's own at which lane jobs have the login of gateway and dispatcher."""
        return [
            name
            for name, server, login in (
                ("Redis", self.redis, own.lane_redis_url),
                ("S3", self.ceph, own.lane_s3_access_key and own.lane_s3_secret_key),
            )
            if server is None and not login
        ]

    def install(self) -> list[str]:
        """Install what the servers and the engine need and the machine lacks.

        Returns the packages that were missing. Raises SetupError that says what to do instead.
        """
        wanted = [
            name
            for name, server in (
                ("rabbitmq", self.rabbitmq),
                ("redis", self.redis),
                ("ceph", self.ceph),
            )
            if server is not None
        ]
        packages = [*missing(wanted), *missing_for_engine()]
        if packages:
            install(packages)
        return packages

    def launch(self) -> None:
        """Start all of them without waiting."""
        for server in (self.rabbitmq, self.redis, self.ceph):
            if server is not None:
                server.launch()

    def wait(self) -> None:
        """Return when all answer."""
        for server in (self.redis, self.ceph, self.rabbitmq):
            if server is not None:
                server.wait()

    def children(self) -> list[Child]:
        """The processes that we started."""
        found = [server.child for server in (self.rabbitmq, self.redis) if server is not None]
        return found + (list(self.ceph.children) if self.ceph else [])

    def stop(self) -> None:
        """Stop the servers that we started."""
        servers = (self.rabbitmq, self.ceph, self.redis)
        all_in_turn(server.stop for server in servers if server is not None)

    def _broker(self, user: User) -> str:
        return self.rabbitmq.url(user) if self.rabbitmq else ""


def service_user(addresses: Addresses) -> str:
    """The name with which our processes log in at the broker."""
    login = addresses.amqp_url.partition("://")[2].rpartition("@")[0]
    return quote(login.partition(":")[0], safe="") or SERVICE_USER
