"""A process that compiles grammars to find out what they cost, each in a process of its own.

`python -m worker.grammar_trial` reads JSON lines and writes JSON lines. The first line is
`{"tokenizer"}`, xgrammar's own description of the model's tokenizer; each further one is
`{"id", "kind", "text", "seconds", "bytes", "convert", "step"}`. Answers have the `id` and what was
measured, in seconds of one processor: `convert`, `compile` and the longest `step`; a trial ends
early with what exceeds its limit. For a grammar that exceeds `seconds` in all or `bytes`, or that
breaks the compiler, there is only `{"id", "died": true}`.

It has one thread, and forks for each grammar: what explodes is ended by the kernel, and the next
one finds everything loaded.
"""

import json
import os
import random
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from math import ceil
from typing import Any, NoReturn

_READ_BYTES = 1024 * 1024
#: How much of an answer is tried: enough to come by the parts of a grammar that are repeated.
_STEPS = 48


def main() -> None:
    """Serve until the input ends."""
    import xgrammar

    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    lines = _Lines(sys.stdin.fileno())
    tokenizer: Any = None
    running: dict[int, str] = {}
    is_open = True
    while is_open or running:
        ready, _, _ = select.select([wake, *([lines.file] if is_open else [])], [], [])
        if wake in ready:
            os.read(wake, _READ_BYTES)
            _reap(running)
        if lines.file not in ready:
            continue
        is_open = lines.read()
        for line in lines.take():
            asked = json.loads(line)
            if tokenizer is None:
                tokenizer = xgrammar.TokenizerInfo.deserialize_json(asked["tokenizer"])
                continue
            if (pid := os.fork()) == 0:
                _try(tokenizer, asked)
            running[pid] = asked["id"]


class _Lines:
    """Lines of a file, without a buffer that `select` does not know of."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._rest = b""

    def read(self) -> bool:
        """Read what is there; False at the end."""
        chunk = os.read(self.file, _READ_BYTES)
        self._rest += chunk
        return bool(chunk)

    def take(self) -> list[bytes]:
        *lines, self._rest = self._rest.split(b"\n")
        return lines


def _reap(running: dict[int, str]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        id_ = running.pop(pid)
        if status:
            _say({"id": id_, "died": True})


def _say(answer: dict[str, Any]) -> None:
    # Shorter than what a pipe takes in one piece.
    os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")


def _try(tokenizer: Any, asked: dict[str, Any]) -> NoReturn:
    """In the child: compile, answer, and end without what the parent would do at its end."""
    signal.set_wakeup_fd(-1)
    # The parent's end shows by the end of its own.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _limit(asked["seconds"], asked["bytes"])
    try:
        answer = _measured(tokenizer, asked)
    except MemoryError:
        os._exit(1)
    except Exception as error:  # noqa: BLE001  # what a foreign compiler raises is its verdict
        if "bad_alloc" in str(error):
            os._exit(1)
        # The engine refuses it in its own words, or has another compiler for it.
        answer = {}
    _say({"id": asked["id"], **answer})
    os._exit(0)


def _limit(seconds: float, size: int) -> None:
    used = ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (used, used + 1))
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  # one line of text
        pages = int(file.read().split()[0])
    space = pages * resource.getpagesize() + size
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _measured(tokenizer: Any, asked: dict[str, Any]) -> dict[str, float]:
    import xgrammar

    began = time.process_time()
    convert: dict[str, Callable[[str], Any]] = {
        "json": xgrammar.Grammar.from_json_schema,
        "regex": xgrammar.Grammar.from_regex,
        "ebnf": xgrammar.Grammar.from_ebnf,
        "structural_tag": _from_structural_tag,
    }
    grammar = convert[asked["kind"]](asked["text"])
    converted = time.process_time()
    if converted - began > asked["convert"]:
        return {"convert": converted - began}
    # One thread: the limit is for all threads together.
    compiler = xgrammar.GrammarCompiler(tokenizer, max_threads=1, cache_enabled=False)
    compiled = compiler.compile_grammar(grammar)
    done = time.process_time()
    return {
        "convert": converted - began,
        "compile": done - converted,
        "step": _longest_step(compiled, tokenizer.vocab_size, limit=asked["step"]),
    }


def _from_structural_tag(text: str) -> Any:
    """As vLLM does, which still takes the older form of structural tags."""
    import xgrammar

    tag = json.loads(text)
    if "structures" not in tag:
        return xgrammar.Grammar.from_structural_tag(text)
    items = [
        xgrammar.StructuralTagItem(
            begin=one["begin"], schema=json.dumps(one["schema"]), end=one["end"]
        )
        for one in tag["structures"]
    ]
    return xgrammar.Grammar.from_structural_tag(items, tag["triggers"])


def _longest_step(compiled: Any, vocabulary: int, *, limit: float) -> float:
    """Write an answer of random tokens, as the engine would step by step, up to a step too long."""
    import xgrammar

    matcher = xgrammar.GrammarMatcher(compiled)
    mask = xgrammar.allocate_token_bitmask(1, vocabulary)
    longest, choose = 0.0, random.Random(0)
    for _ in range(_STEPS):
        began = time.process_time()
        matcher.fill_next_token_bitmask(mask)
        longest = max(longest, time.process_time() - began)
        if longest > limit:
            break
        token = _any_token(mask, vocabulary, choose)
        if token is None or not matcher.accept_token(token) or matcher.is_terminated():
            break
    return longest


def _any_token(mask: Any, vocabulary: int, choose: random.Random) -> int | None:
    words = mask.numpy()[0]
    allowed = [
        32 * number + bit
        for number, word in enumerate(words.tolist())
        if word
        for bit in range(32)
        if word >> bit & 1 and 32 * number + bit < vocabulary
    ]
    return choose.choice(allowed) if allowed else None


if __name__ == "__main__":
    main()
