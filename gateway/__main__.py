"""`python -m gateway`: the HTTP API, configured by the environment alone."""

import socket
import sys
from contextlib import suppress
from typing import cast

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from pydantic_settings import SettingsError

from gateway.app import build_app, end_streams
from gateway.settings import GatewaySettings
from shared.bus.messages import path
from shared.errors import SetupError
from shared.monitoring import log
from shared.tracing import spans

#: The exit code if the port is taken or a service is down.
_NOT_STARTED = 3
#: How long an unused connection stays open. Clients must close it first, or their next call may
#: meet a closed connection: OpenAI's clients do so after 5 s, most load balancers after 60.
_IDLE_SECONDS = 75


def main() -> int:
    """Serve until asked to stop. Returns the exit code: 2 if the settings cannot be used."""
    try:
        settings = GatewaySettings()
        log.configure("gateway", settings.log_level)
        spans.start("gateway")
        app = build_app(settings)
    except ValidationError as error:
        problems = (f"BATCHYARD_{path(e['loc']).upper()}: {e['msg']}" for e in error.errors())
        return _refuse("; ".join(problems))
    except (SettingsError, SetupError) as error:
        return _refuse(str(error))
    server = _Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=settings.grace_seconds,
        )
    )
    with suppress(KeyboardInterrupt):
        server.run()
    return 0 if server.started else _NOT_STARTED


class _Server(uvicorn.Server):
    """Ends event streams first, because it waits for all answers and those would go on."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end_streams(cast("FastAPI", self.config.app))
        await super().shutdown(sockets)


def _refuse(reason: str) -> int:
    sys.stderr.write(f"gateway: cannot start: {reason}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
