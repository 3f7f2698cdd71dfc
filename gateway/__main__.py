"""`python -m gateway`: the HTTP door, configured by the environment alone."""

import sys

import uvicorn
from pydantic import ValidationError
from pydantic_settings import SettingsError

from gateway.app import build_app
from gateway.settings import GatewaySettings
from shared import log
from shared.errors import SetupError
from shared.messages import path


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
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=settings.grace_seconds,
    )
    return 0


def _refuse(reason: str) -> int:
    sys.stderr.write(f"gateway: cannot start: {reason}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
