"""The sockets on which the fleet in containers listens, and what a stranger tries at each."""

from collections.abc import Iterator, Mapping, Sequence

from tests.e2e import strangers
from tests.e2e.doors import (
    Door,
    Gives,
    dispatcher_gives,
    live_door_gives,
    ray_http_gives,
    s3_gives,
    threaded,
)
from tests.e2e.listeners import listeners_beside
from tests.stack.stack import Stack

#: By service and port.
BY_PORT: Mapping[str, Gives] = {
    "dispatcher:8001": dispatcher_gives,
    "rabbitmq:4369": threaded(strangers.epmd_gives),
    "rabbitmq:5672": threaded(strangers.amqp_gives),
    "rabbitmq:25672": threaded(strangers.erlang_gives),
    "redis:6379": threaded(strangers.redis_gives),
    "s3:9000": s3_gives,
    "ray-head:6379": strangers.grpc_gives,
    "ray-head:8265": ray_http_gives,
    "ray-head:10001": strangers.grpc_gives,
    "ray-head:52365": ray_http_gives,
    "worker:52365": ray_http_gives,
    # The doors of the two engines.
    "worker:18800": live_door_gives,
    "worker:18801": live_door_gives,
}
#: The same of Ray's programs that take any free port, by what their command holds.
BY_COMMAND: Mapping[str, Gives] = {
    "/raylet/raylet ": strangers.grpc_gives,
    "ray::RuntimeEnvAgent": ray_http_gives,
    "ray::": strangers.grpc_gives,
    "-m worker lane": strangers.grpc_gives,
    # Ray's dashboard is a driver as soon as it is asked about engines.
    "ray-dashboard-ServeHead": strangers.grpc_gives,
    # Where torch's processes of one engine would meet.
    "VLLM::EngineCore": threaded(strangers.anything_gives),
}
#: What is given all the same, and why.
GIVEN: Mapping[str, Sequence[str]] = {
    # The node's name and port, which nobody can use without the cookie.
    "rabbitmq:4369": ["rabbit"],
}


def doors(stack: Stack) -> Iterator[Door]:
    """All that can be reached from outside their container."""
    for service in stack.services_named():
        first_process = stack.look(stack.container(service))["State"]["Pid"]
        for found in listeners_beside(first_process):
            if not found.is_local:
                name = f"{service}:{found.port}"
                yield Door(
                    name if name in BY_PORT or service == "gateway" else _program(found.command),
                    found,
                    found.address(stack.address(service)),
                )


def _program(command: str) -> str:
    return next((part for part in BY_COMMAND if part in command), "")
