"""`python -m gateway`: the HTTP API, configured by the environment alone."""

import sys
from contextlib import suppress

from pydantic import ValidationError
from pydantic_settings import SettingsError

from gateway.app import build_app
from gateway.server import Server, shared_socket
from gateway.settings import GatewaySettings
from shared.bus.messages import path
from shared.errors import SetupError
from shared.interpreter import prepare_to_serve
from shared.monitoring import log
from shared.tracing import spans

#: The exit code if the port is taken or a service is down.
_NOT_STARTED = 3


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
    prepare_to_serve()
    server = Server.of(app, settings)
    try:
        sockets = [shared_socket(settings)] if settings.share_port else None
    except OSError as error:
        sys.stderr.write(f"gateway: {settings.host}:{settings.port}: {error.strerror}\n")
        return _NOT_STARTED
    with suppress(KeyboardInterrupt):
        server.run(sockets)
    return 0 if server.started else _NOT_STARTED


def _refuse(reason: str) -> int:
    sys.stderr.write(f"gateway: cannot start: {reason}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
