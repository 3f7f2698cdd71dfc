"""Looks at Ray: its version, the nodes for lane jobs, and the engines that do not run."""

import re
import time
from collections.abc import AsyncIterator
from importlib.metadata import requires
from typing import Any

import httpx

from cli.doctor.finding import Finding, Level
from shared.state import State

_PLACE = "ray"
_SECONDS = 10.0
#: The resource of nodes with logins for Redis and S3, where lane jobs run.
_STORES = "stores"
#: The leading dispatcher looks at engines every two seconds.
_UNSEEN_SECONDS = 30.0


async def look(address: str, token: str) -> AsyncIterator[Finding]:
    """What Ray's dashboard says."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=_SECONDS) as http:
        try:
            answer = await http.get("/api/version")
            if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                text = f"it refuses the token ({answer.status_code})"
                do = "Give it as BATCHYARD_RAY_TOKEN: the RAY_AUTH_TOKEN of Ray's nodes."
                yield Finding(_PLACE, Level.FAILED, text, do)
                return
            yield _version(answer.json())
            nodes = (await http.get("/api/v0/nodes", params={"detail": "true"})).json()
            yield _stores(nodes)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            text = f"its dashboard does not answer at {address} ({type(error).__name__})"
            do = "Start Ray's head, or correct BATCHYARD_RAY_ADDRESS."
            yield Finding(_PLACE, Level.FAILED, text, do)


async def look_at_engines(state: State) -> AsyncIterator[Finding]:
    """What the leading dispatcher has last seen of each engine."""
    for lane, engine in sorted((await state.engines.last()).engines.items()):
        silent = time.time() - engine.seen_at
        if silent > _UNSEEN_SECONDS:
            text = f"{lane}: nobody has looked at it for {silent:.0f} s"
            do = "No dispatcher leads, or Ray does not answer it: see the dispatcher's log."
            yield Finding("engines", Level.FAILED, text, do)
        elif engine.reason:
            level = Level.FAILED if engine.state == "failed" else Level.WARNING
            text = f"{lane} is {engine.state}: {engine.reason}"
            yield Finding("engines", level, text, "docs/operations.md, BatchyardEngineCannotStart.")
        else:
            yield Finding("engines", Level.OK, f"{lane} is {engine.state}")


def _version(said: dict[str, Any]) -> Finding:
    found, wanted = str(said["ray_version"]), _wanted()
    if wanted and found != wanted:
        do = f"Install Ray {wanted} on every node: lane jobs and nodes have to be of one version."
        return Finding(_PLACE, Level.FAILED, f"Ray {found}, not {wanted}", do)
    return Finding(_PLACE, Level.OK, f"Ray {found}")


def _wanted() -> str:
    """The version that this Batchyard is made for."""
    found = (re.match(r"ray\[.*?\]==([\d.]+)", one) for one in requires("batchyard") or ())
    return next((match[1] for match in found if match), "")


def _stores(answer: dict[str, Any]) -> Finding:
    nodes = answer["data"]["result"]["result"]
    alive = [node for node in nodes if node["state"] == "ALIVE"]
    if any(node["resources_total"].get(_STORES) for node in alive):
        return Finding(_PLACE, Level.OK, f"{len(alive)} nodes, with one for lane jobs")
    return Finding(
        _PLACE,
        Level.FAILED,
        f"none of its {len(alive)} nodes has the resource '{_STORES}', so lane jobs cannot start",
        "Start the node that may reach Redis and S3 with --resources='{\"stores\": 1}'.",
    )
