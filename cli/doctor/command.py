"""`batchyard doctor` at a terminal."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated

import psutil
import typer

from cli.client.contexts import Target, checked_key
from cli.client.exit_codes import ExitCode
from cli.doctor import finding, gateway, rabbitmq, ray, redis, s3
from cli.doctor.finding import Finding, Level
from cli.options import HERE, AsJson, RedisUrl, RunDir
from cli.s3_options import S3Options, with_s3_options
from cli.servers import Ports
from shared.errors import SetupError, TransientError
from shared.state import State
from shared.storage import Storage

_SECONDS = 5.0
_COLORS = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILED: "red", Level.SKIPPED: None}


@with_s3_options
def run(
    *,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    s3: S3Options,
    amqp_url: Annotated[
        str | None,
        typer.Option(
            envvar="BATCHYARD_AMQP_URL",
            help="The fleet's RabbitMQ, unless it is in the folder.",
            show_envvar=True,
        ),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(envvar="BATCHYARD_RAY_ADDRESS", show_envvar=True)
    ] = None,
    ray_token: Annotated[
        str | None, typer.Option(envvar="BATCHYARD_RAY_TOKEN", show_envvar=True)
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(envvar="OPENAI_BASE_URL", help="The gateway.", show_envvar=True),
    ] = None,
    row_seconds: Annotated[
        float, typer.Option(help="How long the row of each warm engine may take.")
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Look at everything that a fleet needs, and say what is wrong and what to do.

    Servers, versions, clocks, disk, rights, policies, Ray and engines; one row goes through each
    engine that runs. Nothing is changed but that row's batch, which belongs to the key's tenant.
    Exits with 8 if anything has failed.
    """
    places = _Places(run_dir, redis_url, s3, amqp_url, ray_address, ray_token, base_url)
    counts = Counter[Level]()
    for found in _look(places, row_seconds):
        counts[found.level] += 1
        _show(found, as_json=as_json)
    if not as_json:
        typer.echo(", ".join(f"{counts[level]} {level}" for level in Level))
    if counts[Level.FAILED]:
        raise typer.Exit(ExitCode.DAMAGED)
    if not counts[Level.OK]:
        raise SetupError("Nothing could be looked at: name the fleet's folder, or its servers.")


class _Places:
    """Where each part of the fleet is: as named, or as the run directory knows it."""

    def __init__(
        self,
        run_dir: Path,
        redis_url: str | None,
        s3_options: S3Options,
        amqp_url: str | None,
        ray_address: str | None,
        ray_token: str | None,
        base_url: str | None,
    ) -> None:
        self.run_dir = run_dir
        #: Whether the folder is a fleet's: its commands would make one of any other.
        self.is_own = (run_dir / "credentials.json").exists()
        self._redis_url = redis_url
        self._s3 = s3_options
        self._amqp_url = amqp_url
        self._ray = ray_address, ray_token
        self._base_url = base_url

    def redis(self) -> str:
        from cli.fleet.running import redis_url

        return redis_url(self.run_dir, self._redis_url)

    def s3(self) -> tuple[Storage, str]:
        from cli.fleet.running import s3_place

        named = self._s3
        place = s3_place(self.run_dir, named.s3_endpoint, named.s3_access_key, named.s3_secret_key)
        storage = Storage(
            *place, named.s3_bucket, region=named.s3_region, patience_seconds=_SECONDS, attempts=1
        )
        return storage, place[0]

    def rabbitmq(self) -> tuple[str, rabbitmq.Policies | None]:
        from cli.fleet import running

        url = running.amqp_url(self.run_dir, self._amqp_url)
        if self._amqp_url:
            return url, None
        broker = running.rabbitmq(self.run_dir)
        return url, lambda: broker.ctl("list_policies", "--formatter", "json")

    def ray(self) -> tuple[str, str]:
        from cli.fleet.credentials import read_credentials

        address, token = self._ray
        if address:
            return address, token or ""
        if not self.is_own:
            raise SetupError(
                "Set BATCHYARD_RAY_ADDRESS and BATCHYARD_RAY_TOKEN, as dispatchers do."
            )
        port = Ports(self.run_dir).get("ray-dashboard-port")
        return f"http://127.0.0.1:{port}", read_credentials(self.run_dir).ray_token

    def gateway(self) -> Target:
        import os

        from cli.fleet.credentials import read_credentials

        key = os.environ.get("OPENAI_API_KEY")
        if self._base_url and key:
            url = self._base_url.rstrip("/")
            return Target("doctor", url, checked_key(key, "OPENAI_API_KEY"))
        if self._base_url or not self.is_own:
            raise SetupError("Set OPENAI_BASE_URL and OPENAI_API_KEY: a gateway and a key for it.")
        port = Ports(self.run_dir).get("gateway")
        made = read_credentials(self.run_dir)
        return Target("doctor", f"http://127.0.0.1:{port}/v1", made.api_key)


def _look(places: _Places, row_seconds: float) -> Iterator[Finding]:
    """Everything, one part after the other; a part that cannot be found hides no other one."""
    if places.is_own:
        disk = psutil.disk_usage(str(places.run_dir))
        yield finding.room("machine", f"the disk of {places.run_dir}", disk.used, disk.total)
    for name, look in (
        ("redis", lambda: _all(redis.look(places.redis()))),
        ("s3", lambda: _all(_s3(places))),
        ("rabbitmq", lambda: _all(rabbitmq.look(*places.rabbitmq()))),
        ("ray", lambda: _all(ray.look(*places.ray()))),
        ("engines", lambda: _all(_engines(places))),
        ("gateway", lambda: gateway.look(places.gateway(), row_seconds=row_seconds)),
    ):
        try:
            yield from look()
        except SetupError as error:
            yield Finding(name, Level.SKIPPED, "nobody said where it is", str(error))
        except TransientError as error:
            yield Finding(name, Level.FAILED, str(error), "See the lines above.")


def _all(found: AsyncIterator[Finding]) -> list[Finding]:
    async def collect() -> list[Finding]:
        return [one async for one in found]

    return asyncio.run(collect())


async def _s3(places: _Places) -> AsyncIterator[Finding]:
    storage, endpoint = places.s3()
    try:
        async for found in s3.look(storage, endpoint):
            yield found
    finally:
        storage.close()


async def _engines(places: _Places) -> AsyncIterator[Finding]:
    state = State(places.redis(), patience_seconds=_SECONDS)
    try:
        async for found in ray.look_at_engines(state):
            yield found
    finally:
        await state.close()


def _show(found: Finding, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found._asdict()))
        return
    level = typer.style(f"{found.level:<8}", fg=_COLORS[found.level])
    typer.echo(f"{level} {found.place:<11} {found.says}")
    if found.do:
        typer.echo(f"{'':<20} -> {found.do}")
