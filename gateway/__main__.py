"""`python -m gateway`: the HTTP door, configured by the environment alone."""

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

#: The exit code where the port cannot be had, or a service stays away.
_NOT_STARTED = 3
#: A connection that nobody uses. Whoever keeps it for the next call has to end it first, or that
#: call meets its end: OpenAI's clients do so after 5 s, most load balancers after 60.
_IDLE_SECONDS = 75


def main() -> int:
    """Serve until asked to stop. Returns the exit code: 2 if the settings cannot be used."""
    try:
        settings = GatewaySettings()
        log.configure("gateway", settings.log_level)
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
    """Ends the streams of events first: it waits for all answers, and they have no end."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end_streams(cast("FastAPI", self.config.app))
        await super().shutdown(sockets)


def _refuse(reason: str) -> int:
    sys.stderr.write(f"gateway: cannot start: {reason}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
