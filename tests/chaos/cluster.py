"""A substitute for Ray's head: `python -m tests.chaos.cluster HOST PORT FOLDER`.

Speaks Ray's Jobs API and runs lane jobs as processes, which die with it. `FOLDER/jobs.json` has
the pids of those that run; `FOLDER/next-crash` says where the next one is to die.
"""

import asyncio
import json
import multiprocessing
import sys
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from aiohttp import web

_POLL_SECONDS = 0.1
#: What Ray gives a job between asking it to end and ending it.
_GRACE_SECONDS = 1.0


class Jobs:
    """The jobs since this head began; one that came before is unknown, as in Ray."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        # Modules that take seconds to import are imported once.
        self._context.set_forkserver_preload(["tests.chaos.lane_job"])
        self._jobs: dict[str, BaseProcess] = {}
        self._stopped: set[str] = set()
        self._stopping: set[asyncio.Task[None]] = set()

    async def submit(self, request: web.Request) -> web.Response:
        intent = await request.json()
        job = intent["submission_id"]
        if job in self._jobs:
            return web.Response(status=400, text=f"Job {job} exists already.")
        process = self._context.Process(
            target=_run_lane_job, args=(intent["metadata"]["lane"], job, self._next_crash())
        )
        process.start()
        self._jobs[job] = process
        self._note()
        return web.json_response({"submission_id": job})

    async def status(self, request: web.Request) -> web.Response:
        job = request.match_info["job"]
        if job not in self._jobs:
            return web.Response(status=404, text=f"Job {job} does not exist.")
        match self._jobs[job].exitcode:
            case None:
                status = "STOPPED" if job in self._stopped else "RUNNING"
            case 0:
                status = "SUCCEEDED"
            case _:
                status = "STOPPED" if job in self._stopped else "FAILED"
        return web.json_response({"status": status, "message": f"Job {job}: {status}."})

    async def stop(self, request: web.Request) -> web.Response:
        job = request.match_info["job"]
        if job not in self._jobs:
            return web.Response(status=404, text=f"Job {job} does not exist.")
        if self._jobs[job].exitcode is None:
            self._stopped.add(job)
            # A node that is cut off continues to run what Ray believes to have ended.
            if not (self._folder / "cut-off").exists():
                task = asyncio.create_task(self._end(self._jobs[job]))
                self._stopping.add(task)
                task.add_done_callback(self._stopping.discard)
        return web.json_response({"stopped": True})

    async def watch(self) -> None:
        """Keep the list of running jobs up to date."""
        before: list[int | None] = []
        while True:
            now = [process.exitcode for process in self._jobs.values()]
            if now != before:
                before = now
                self._note()
            await asyncio.sleep(_POLL_SECONDS)

    async def _end(self, process: BaseProcess) -> None:
        with suppress(ProcessLookupError):
            process.terminate()
            await asyncio.sleep(_GRACE_SECONDS)
            # A frozen process does not receive the first signal.
            process.kill()

    def _next_crash(self) -> dict[str, str]:
        path = self._folder / "next-crash"
        try:
            wanted = path.read_text()
            path.unlink()
        except FileNotFoundError:
            return {}
        return {"BATCHYARD_CRASH_AT": wanted}

    def _note(self) -> None:
        running = {
            job: process.pid for job, process in self._jobs.items() if process.exitcode is None
        }
        draft = self._folder / "jobs.draft"
        draft.write_text(json.dumps(running))
        draft.replace(self._folder / "jobs.json")


def _run_lane_job(lane: str, job: str, environment: dict[str, str]) -> None:
    # The fork server imports it; without it the head itself starts in a second.
    from tests.chaos.lane_job import main

    main(lane, job, environment)


async def _no_applications(_: web.Request) -> web.Response:
    """As Ray answers without Serve: the simulated engines are no deployments of it."""
    return web.json_response({"applications": {}})


async def serve(host: str, port: int, folder: Path) -> None:
    """Answer until killed."""
    jobs = Jobs(folder)
    app = web.Application()
    app.router.add_post("/api/jobs/", jobs.submit)
    app.router.add_get("/api/jobs/{job}", jobs.status)
    app.router.add_post("/api/jobs/{job}/stop", jobs.stop)
    app.router.add_get("/api/serve/applications/", _no_applications)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    await jobs.watch()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
