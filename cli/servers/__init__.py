"""Private RabbitMQ, Redis and S3 as child processes, for `batchyard up` and the tests."""

from cli.servers.ceph import CephS3
from cli.servers.ceph_users import S3User
from cli.servers.install import install, missing, missing_for_engine
from cli.servers.ports import Ports, free_port
from cli.servers.process import Child, sole_user_of
from cli.servers.rabbitmq import RabbitMQ
from cli.servers.redis import Redis
from shared.bus.topology import User

__all__ = [
    "CephS3",
    "Child",
    "Ports",
    "RabbitMQ",
    "Redis",
    "S3User",
    "User",
    "free_port",
    "install",
    "missing",
    "missing_for_engine",
    "sole_user_of",
]
