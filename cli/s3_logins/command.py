"""`batchyard s3-logins` at a terminal."""

import asyncio
import fcntl
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.options import HERE, AsJson, RunDir, S3Bucket, echo_secret, require_tenant
from cli.s3_logins.bucket import USER_PREFIX, apply_policy, tenants
from cli.s3_logins.policy import identity_policy
from cli.servers import CephS3, S3User
from cli.trail import told
from shared.errors import InvalidInputError, NotFoundError, SetupError
from shared.settings import DEFAULT_TENANT_PREFIX
from shared.storage import Storage

app = typer.Typer(
    no_args_is_help=True,
    help="Make, list, renew and delete the S3 logins by which tenants place inputs and read "
    "results.",
)

Print = Literal["policy"]
TenantName = Annotated[str, typer.Argument(help="The tenant whose login it is.")]
TenantPrefix = Annotated[
    str,
    typer.Option(
        envvar="BATCHYARD_TENANT_PREFIX",
        help="Where in the bucket a tenant places inputs, as the dispatcher has it.",
        show_envvar=True,
    ),
]


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="The tenant that the login is for.")],
    *,
    to_print: Annotated[
        Print | None,
        typer.Option(
            "--print",
            help="Change nothing: print the IAM policy to attach to the tenant's user in an S3 "
            "server of your own.",
        ),
    ] = None,
    bucket: S3Bucket = "batchyard",
    tenant_prefix: TenantPrefix = DEFAULT_TENANT_PREFIX,
    run_dir: RunDir = HERE,
    as_json: AsJson = False,
) -> None:
    """Make an S3 login that can place the tenant's inputs and read its results; show it once."""
    require_tenant(tenant)
    _require_own(tenant_prefix)
    if to_print is not None:
        typer.echo(json.dumps(identity_policy(tenant, bucket, tenant_prefix), indent=2))
        return
    with _changing(run_dir, "s3_login.created", tenant) as server:
        if _user_id(tenant) in server.users.ids():
            raise InvalidInputError(
                f"--tenant {tenant}: there is an S3 login of this tenant. "
                f"`batchyard s3-logins renew {tenant}` gives it new keys."
            )
        user = _put(server, tenant)
        _apply_policy(server, run_dir, bucket, tenant_prefix)
    _show(user, server.endpoint, bucket, tenant_prefix.replace("{tenant}", tenant), as_json=as_json)


@app.command("list")
def list_logins(*, run_dir: RunDir = HERE, as_json: AsJson = False) -> None:
    """Show which tenants have an S3 login."""
    from cli.fleet.running import ceph

    names = sorted(tenants(ceph(run_dir)))
    typer.echo(json.dumps([{"tenant": name} for name in names]) if as_json else "\n".join(names))


@app.command()
def renew(
    tenant: TenantName,
    *,
    bucket: S3Bucket = "batchyard",
    tenant_prefix: TenantPrefix = DEFAULT_TENANT_PREFIX,
    run_dir: RunDir = HERE,
    as_json: AsJson = False,
) -> None:
    """Give a tenant's login new keys; the old ones are refused from now on."""
    _require_own(tenant_prefix)
    with _changing(run_dir, "s3_login.renewed", tenant) as server:
        _require_login(server, tenant)
        user = _put(server, tenant)
        _apply_policy(server, run_dir, bucket, tenant_prefix)
    _show(user, server.endpoint, bucket, tenant_prefix.replace("{tenant}", tenant), as_json=as_json)


@app.command()
def delete(
    tenant: TenantName,
    *,
    bucket: S3Bucket = "batchyard",
    tenant_prefix: TenantPrefix = DEFAULT_TENANT_PREFIX,
    run_dir: RunDir = HERE,
    as_json: AsJson = False,
) -> None:
    """Delete a tenant's login; its objects and batches stay."""
    _require_own(tenant_prefix)
    with _changing(run_dir, "s3_login.deleted", tenant) as server:
        _require_login(server, tenant)
        server.users.delete(_user_id(tenant))
        _apply_policy(server, run_dir, bucket, tenant_prefix)
    typer.echo(json.dumps({"tenant": tenant, "deleted": True}) if as_json else f"deleted  {tenant}")


@contextmanager
def _changing(run_dir: Path, act: str, tenant: str) -> Iterator[CephS3]:
    """The run directory's own S3, while no other command changes its logins. The trail has it."""
    from cli.fleet.running import ceph

    server = ceph(run_dir)
    with (run_dir / "s3" / "logins.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with told(run_dir, act, tenant=tenant, about=tenant):
            yield server


def _put(server: CephS3, tenant: str) -> S3User:
    keys = secrets.token_hex(10).upper(), secrets.token_urlsafe(30)
    user = S3User(_user_id(tenant), *keys)
    server.users.put(user)
    return user


def _apply_policy(server: CephS3, run_dir: Path, bucket: str, tenant_prefix: str) -> None:
    from cli.fleet.running import s3_place

    async def apply() -> None:
        storage = Storage(*s3_place(run_dir, None, None, None), bucket)
        try:
            await storage.prepare()
            await apply_policy(server, storage, tenant_prefix)
        finally:
            storage.close()

    asyncio.run(apply())


def _user_id(tenant: str) -> str:
    return f"{USER_PREFIX}{tenant}"


def _require_login(server: CephS3, tenant: str) -> None:
    if tenant not in tenants(server):
        raise NotFoundError(f"There is no S3 login of a tenant '{tenant}'.")


def _require_own(tenant_prefix: str) -> None:
    """Raise SetupError unless every tenant has its own prefix."""
    if "{tenant}/" not in tenant_prefix or set("*?$") & set(tenant_prefix):
        raise SetupError(
            f"--tenant-prefix {tenant_prefix}: it has to contain '{{tenant}}/' and none of * ? $. "
            "Otherwise one tenant's login could read what another one places."
        )


def _show(user: S3User, endpoint: str, bucket: str, prefix: str, *, as_json: bool) -> None:
    shown = {
        "access_key": user.access_key,
        "secret_key": user.secret_key,
        "endpoint": endpoint,
        "bucket": bucket,
        "prefix": prefix,
    }
    if as_json:
        typer.echo(json.dumps(shown))
        return
    echo_secret(
        "\n".join(f"{name.replace('_', ' '):<10}  {value}" for name, value in shown.items())
    )
