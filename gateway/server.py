"""How uvicorn serves the gateway."""

import socket
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from gateway.app import end_streams
from gateway.settings import GatewaySettings
from gateway.slow_readers import reading_at_least

#: How long an unused connection stays open. Clients must close it first, or their next call may
#: meet a closed connection: OpenAI's clients do so after 5 s, most load balancers after 60.
_IDLE_SECONDS = 75


def shared_socket(settings: GatewaySettings) -> socket.socket:
    """A socket on the gateway's port, which others of the same user may have, too.

    It does not listen yet, or it would get connections that nobody takes before the gateway has
    started. Raises OSError.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    shared = socket.socket(family, socket.SOCK_STREAM)
    try:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            shared.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        shared.bind((settings.host, settings.port))
    except OSError:
        shared.close()
        raise
    return shared


class Server(uvicorn.Server):
    """Ends event streams first, because it waits for all answers and those would go on."""

    @classmethod
    def of(cls, app: FastAPI, settings: GatewaySettings, **others: Any) -> "Server":
        """The server of the gateway; `others` take the place of what uvicorn is told otherwise."""
        told: dict[str, Any] = {
            "host": settings.host,
            "port": settings.port,
            "http": reading_at_least(settings.min_bytes_per_second),
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "timeout_keep_alive": _IDLE_SECONDS,
            "timeout_graceful_shutdown": settings.grace_seconds,
        }
        return cls(uvicorn.Config(app, **told | others))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end_streams(cast("FastAPI", self.config.app))
        await super().shutdown(sockets)
