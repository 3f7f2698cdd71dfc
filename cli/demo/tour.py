"""The demo from beginning to end: start, send, follow, answer, stop."""

import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from openai import OpenAI

from cli.demo.batches import Job, create, fetch, follow, upload, write_requests
from cli.demo.events import Listener
from cli.demo.here import fleet_here
from cli.demo.nearest import nearest
from cli.demo.screen import Screen
from cli.demo.tickets import QUESTIONS, Ticket, tickets
from cli.demo.times import Times
from cli.fleet import Fleet, Options, foreground
from cli.fleet.catalog import CHAT_MODEL
from cli.fleet.credentials import TENANT
from cli.servers.process import make_private_directory
from shared.errors import SetupError

_TICKETS = 300
#: How many of them get a reply from the chat model.
_REPLIES = 60
_REPLY_TOKENS = 48
_NEAREST = 4
#: Small slices, so that the bars of these small batches move.
_SETTINGS = {"BATCHYARD_ROWS_PER_SLICE": "20"}
_PROMPT = "You answer customers of a shop for household devices. Reply in two friendly sentences."


def run(run_dir: Path) -> None:
    """Show all of Batchyard on this machine, and stop everything that was started."""
    screen = Screen()
    with foreground(Options(run_dir, settings=_SETTINGS), screen.say) as fleet:
        tour = _Tour(fleet.run_dir / "results", screen, check=partial(_check, fleet))
        try:
            tour.start(fleet)
            tour.run(fleet.client_environment())
        except KeyboardInterrupt:
            screen.line("stopping", "interrupted; what the demo started is stopped", "yellow")
            raise
    screen.line("stopped", "every process that the demo started")


def run_here() -> None:
    """Show a running fleet, from its gateway's environment; nothing is started."""
    screen = Screen()
    with fleet_here() as environment:
        screen.heading(f"1. The fleet at {environment['OPENAI_BASE_URL']}")
        results = Path(tempfile.gettempdir(), "batchyard-demo")
        _Tour(results, screen, check=lambda: None).run(environment)


class _Tour:
    """The steps of the demo."""

    def __init__(self, results: Path, screen: Screen, *, check: Callable[[], None]) -> None:
        self._screen = screen
        self._results = results
        self._check = check
        self._times = Times()

    def start(self, fleet: Fleet) -> None:
        """Bring the fleet up."""
        self._screen.heading("1. The fleet: RabbitMQ, Redis, Ceph S3, Ray, dispatcher, gateway")
        began = time.monotonic()
        if packages := fleet.servers.install():
            self._screen.line("installed", " ".join(packages))
            self._times.add("install: Debian packages", time.monotonic() - began)
        with self._times.measure("servers, Ray, gateway and dispatcher up"):
            fleet.start()
        self._screen.line("gateway", fleet.base_url)

    def run(self, environment: Mapping[str, str]) -> None:
        """All steps that need a fleet."""
        client = OpenAI(
            base_url=environment["OPENAI_BASE_URL"],
            api_key=environment["OPENAI_API_KEY"],
        )
        listener = Listener(environment["BATCHYARD_AMQP_URL"], TENANT, self._screen)
        written = tickets(_TICKETS)
        with listener.listening():
            jobs = self._send(client, listener, written, environment)
            self._follow(client, jobs)
            answers = self._ask(client, listener, environment)
            listener.wait_for_ends(5)
        self._show_nearest(client, jobs[0], answers, written)
        self._show_reply(client, jobs[1], written, environment["CHAT_MODEL"])
        self._show_times()

    def _send(
        self,
        client: OpenAI,
        listener: Listener,
        written: list[Ticket],
        environment: Mapping[str, str],
    ) -> tuple[Job, Job]:
        embed, chat = environment["EMBED_MODEL"], environment["CHAT_MODEL"]
        self._screen.heading(f"2. Two batches of support tickets for {embed} and {chat}")
        make_private_directory(self._results)
        to_embed = write_requests(
            self._results / "tickets.jsonl",
            "/v1/embeddings",
            {ticket.id: {"model": embed, "input": ticket.text} for ticket in written},
        )
        to_answer = write_requests(
            self._results / "chat.jsonl",
            "/v1/chat/completions",
            {ticket.id: _chat_body(chat, ticket) for ticket in written[:_REPLIES]},
        )
        with self._times.measure("upload of both inputs"):
            files = [upload(client, path) for path in (to_embed, to_answer)]
        for path, file_id in zip((to_embed, to_answer), files, strict=True):
            self._screen.line("uploaded", f"{path}  {path.stat().st_size:,} bytes  {file_id}")
        # Both at once: the engines' starts take most of the time, and they share the cores well.
        wait = "the engine starts (once; it stays warm)"
        embeddings = create(
            client,
            "embeddings",
            files[0],
            "/v1/embeddings",
            rows=_TICKETS,
            first_wait=wait,
        )
        listener.expect(embeddings.batch.id)
        replies = create(
            client,
            "chat",
            files[1],
            "/v1/chat/completions",
            rows=_REPLIES,
            first_wait=wait,
        )
        listener.expect(replies.batch.id)
        return embeddings, replies

    def _follow(self, client: OpenAI, jobs: tuple[Job, Job]) -> None:
        follow(client, jobs, self._screen, check=self._check)
        for job in jobs:
            first = job.seconds_to_first_result
            self._times.add(f"{job.name}: engine start, to the first result", first)
            self._times.add(f"{job.name}: the rest of {job.rows} rows", job.seconds - first)

    def _ask(
        self, client: OpenAI, listener: Listener, environment: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        self._screen.heading("3. Questions as a third batch, on the engine that is warm now")
        path = write_requests(
            self._results / "questions.jsonl",
            "/v1/embeddings",
            {
                question: {"model": environment["EMBED_MODEL"], "input": question}
                for question in QUESTIONS
            },
        )
        job = create(
            client,
            "questions",
            upload(client, path),
            "/v1/embeddings",
            rows=len(QUESTIONS),
            first_wait="the rows run",
        )
        listener.expect(job.batch.id)
        follow(client, [job], self._screen, check=self._check)
        self._times.add(f"questions: {job.rows} rows on the warm engine", job.seconds)
        return fetch(client, job, self._results / "questions.embeddings.jsonl")

    def _show_nearest(
        self,
        client: OpenAI,
        job: Job,
        answers: list[dict[str, Any]],
        written: list[Ticket],
    ) -> None:
        results = fetch(client, job, self._results / "tickets.embeddings.jsonl")
        vectors = {result["custom_id"]: _vector(result) for result in results}
        texts = {ticket.id: ticket.text for ticket in written}
        self._screen.heading(f"4. The tickets nearest in meaning, of {len(vectors)}")
        for answer in answers:
            self._screen.line("question", answer["custom_id"], "bold green")
            for similarity, ticket_id in nearest(_vector(answer), vectors, limit=_NEAREST):
                self._screen.say(f"  {similarity:.2f}  {ticket_id}  {texts[ticket_id]}")

    def _show_reply(self, client: OpenAI, job: Job, written: list[Ticket], model: str) -> None:
        results = fetch(client, job, self._results / "chat.replies.jsonl")
        body = results[0]["response"]["body"]
        reply = " ".join(body["choices"][0]["message"]["content"].split())
        is_tiny = model == CHAT_MODEL
        what = ", which is tiny and has random weights" if is_tiny else f" {model}"
        self._screen.heading(f"5. A reply of the chat model{what}")
        self._screen.line("ticket", written[0].text)
        self._screen.line("reply", f"{reply[:100]}…")
        if is_tiny:
            self._screen.say(
                "Nonsense, as it must be: the model shows the way, not the wit. "
                "`batchyard up --model NAME_OR_PATH` serves a real one."
            )

    def _show_times(self) -> None:
        self._screen.heading(f"6. Files, in {self._results}")
        for path in sorted(self._results.glob("*.jsonl")):
            self._screen.say(f"  {path}  {path.stat().st_size:,} bytes")
        self._screen.table("Time", self._times.rows())


def _check(fleet: Fleet) -> None:
    """Raise SetupError when a process of the fleet has died: the demo could not go on."""
    for child in fleet.children():
        if not child.is_alive():
            raise SetupError(
                f"{child.name} ended with exit code {child.exit_code}. "
                f"The end of {child.log_file}:\n{child.tail_of_log()}"
            )


def _chat_body(model: str, ticket: Ticket) -> dict[str, Any]:
    return {
        "model": model,
        "max_tokens": _REPLY_TOKENS,
        "messages": [
            {"role": "system", "content": _PROMPT},
            {"role": "user", "content": ticket.text},
        ],
    }


def _vector(result: dict[str, Any]) -> list[float]:
    vector: list[float] = result["response"]["body"]["data"][0]["embedding"]
    return vector
