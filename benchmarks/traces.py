"""What traces cost beside the work that they describe: `python -m benchmarks.traces`.

Slices run through the real runner on an engine that answers at once, so the spans' share is the
largest that there can be: a real engine takes seconds for a slice, and this one nothing.
"""

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.rows import CHAT, lines
from shared.ordering.work import Work
from shared.slices import Claim, Slice
from shared.state import State
from shared.tracing import spans
from worker.batch_watch import BatchWatch
from worker.engine_errors import Results
from worker.slice_io import SliceInput
from worker.slice_runner import SliceRunner

_ROWS, _SLICES, _ROWS_A_CALL, _SPANS = 128, 200, 16, 200_000
_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_ANSWER = (200, b'{"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}')


class _InstantEngine:
    async def run_lines(
        self,
        lines: Sequence[bytes],
        order: Sequence[Work],  # noqa: ARG002  # an engine's signature
    ) -> AsyncGenerator[Results, None]:
        for position in range(len(lines)):
            yield [(position, _ANSWER)]

    async def withdraw(self, batch_id: str) -> None:
        pass


class _Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Not among the figures."""


def main() -> None:
    """Print the cost of a span, and of a slice's spans, off and on."""
    off, named = _span_seconds(""), _span_seconds()
    slice_off = asyncio.run(_slice_seconds())
    collector = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.server_port}"
    spans.start("benchmark")
    on = _span_seconds(number=_SPANS // 100)
    slice_on = asyncio.run(_slice_seconds())
    spans.stop()
    spans_a_slice = 1 + _ROWS // _ROWS_A_CALL
    # The calls of the engine name nothing: they are within the slice.
    share = (named + (spans_a_slice - 1) * off) / slice_off
    print(f"a span, off                {off * 1e9:.0f} ns")
    print(f"the same, naming a trace   {named * 1e6:.1f} µs")
    print(f"a span, on                 {on * 1e6:.1f} µs, {on / off:.0f} times as much")
    print(f"a slice of {_ROWS} rows, off    {slice_off * 1e6:.0f} µs")
    print(f"its {spans_a_slice} spans, off           {share:.2%} of that")
    print(f"the slice with traces on   {slice_on / slice_off:.2f} times as long")


def _span_seconds(parent: str = _PARENT, *, number: int = _SPANS) -> float:
    began = time.perf_counter()
    for _ in range(number):
        with spans.span("a", parent=parent):
            pass
    return (time.perf_counter() - began) / number


async def _slice_seconds() -> float:
    body = lines(CHAT, _ROWS, model="m", tokens=1)
    slice_ = Slice(0, len(body), 0, _ROWS, _ROWS)
    claim = Claim("m@p", "batch_1", 0, 1, 0, slice_, "b", "k", "e", CHAT, "t", traceparent=_PARENT)
    # Nothing asks Redis while a slice runs for less than a look.
    state = State("redis://127.0.0.1:9")
    runner = SliceRunner(
        _InstantEngine(),
        BatchWatch(state),
        rows_in_engine=_ROWS,
        rows_per_engine_call=_ROWS_A_CALL,
    )
    seconds = []
    for _ in range(_SLICES):
        began = time.perf_counter()
        result = await runner.run(claim, SliceInput(body))
        seconds.append(time.perf_counter() - began)
        assert result.body.rows == _ROWS
    await state.close()
    return sorted(seconds)[_SLICES // 2]


if __name__ == "__main__":
    main()
