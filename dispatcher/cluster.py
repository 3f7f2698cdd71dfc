"""The Ray cluster as the dispatcher knows it: jobs and engines, over Ray's HTTP API."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import httpx

from shared.errors import TransientError

#: Characters of what Ray says about a job.
_MAX_MESSAGE = 800


class JobStatus(StrEnum):
    """Ray's statuses of a job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def is_over(self) -> bool:
        return self in (JobStatus.STOPPED, JobStatus.SUCCEEDED, JobStatus.FAILED)


class Cluster:
    """Submits, watches and stops Ray jobs, under ids that the caller chooses; looks at engines."""

    def __init__(self, address: str, token: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=f"{address.rstrip('/')}/api",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=20,
        )

    async def submit(self, job: str, entrypoint: str, *, metadata: Mapping[str, str]) -> None:
        """Start a job. If one with this id exists already, it is left alone."""
        answer = await self._call(
            "POST",
            "/jobs/",
            {
                "submission_id": job,
                "entrypoint": entrypoint,
                "metadata": dict(metadata),
            },
        )
        if answer.is_error and await self.status(job) is None:
            raise TransientError(f"Ray did not take job {job}: {_reason(answer)}")

    async def status(self, job: str) -> JobStatus | None:
        """The job's status; None if Ray does not know it, or no longer."""
        answer = await self._call("GET", f"/jobs/{job}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        return JobStatus(self._checked(answer)["status"])

    async def stop(self, job: str) -> None:
        """Ask Ray to end the job. It is no error if the job has ended or is unknown."""
        answer = await self._call("POST", f"/jobs/{job}/stop")
        if answer.status_code != httpx.codes.NOT_FOUND:
            self._checked(answer)

    async def over(self, *, seconds: float, now: float) -> list[str]:
        """Ids of lanes' jobs that ended more than `seconds` ago."""
        jobs: Any = self._checked(await self._call("GET", "/jobs/"))
        return [
            job["submission_id"]
            for job in jobs
            if "lane" in (job.get("metadata") or {})
            and JobStatus(job["status"]).is_over
            and (job.get("end_time") or now * 1000) < (now - seconds) * 1000
        ]

    async def forget(self, job: str) -> None:
        """Have Ray delete its record of a job that is over. It is no error if there is none."""
        answer = await self._call("DELETE", f"/jobs/{job}")
        if answer.status_code != httpx.codes.NOT_FOUND:
            self._checked(answer)

    async def message(self, job: str) -> str:
        """Ray's message about how the job ended, with the end of the job's output."""
        answer = await self._call("GET", f"/jobs/{job}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return "Ray does not know the job."
        return _shortened(str(self._checked(answer).get("message") or ""))

    async def applications(self) -> dict[str, Any]:
        """The applications of Ray Serve by name, as its REST API has them; none without Serve."""
        found = self._checked(await self._call("GET", "/serve/applications/"))
        applications: dict[str, Any] = found.get("applications") or {}
        return applications

    async def ping(self) -> None:
        """Raise TransientError if Ray does not answer, or refuses our token."""
        await self.status("ping")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _call(self, method: str, path: str, body: object = None) -> httpx.Response:
        try:
            return await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise TransientError(f"Ray cannot be reached: {error!r}") from error

    @staticmethod
    def _checked(answer: httpx.Response) -> dict[str, Any]:
        if answer.is_error:
            raise TransientError(f"Ray answered {answer.status_code}: {_reason(answer)}")
        try:
            body: dict[str, Any] = answer.json()
        except ValueError as error:
            raise TransientError(f"The answer is not from Ray: {_reason(answer)}") from error
        return body


def _shortened(text: str) -> str:
    # It goes into the batch and all its events, and Ray adds up to 20,000 characters of log.
    if len(text) <= _MAX_MESSAGE:
        return text
    return f"{text[: _MAX_MESSAGE // 4]} […] {text[-_MAX_MESSAGE // 2 :]}"


def _reason(answer: httpx.Response) -> str:
    lines = answer.text.strip().splitlines()
    return lines[-1][:300] if lines else "no reason given"
