"""What NVIDIA's command says of the machine's first card."""

import contextlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import IO, Any

_COMMAND = "nvidia-smi"
_SAMPLE_MILLISECONDS = 250
_MIB_OF_A_GIB = 1024

#: Percent of the time in which it computed, GiB in use, watts.
Sample = tuple[float, float, float]


def facts() -> dict[str, Any]:
    """Its name, driver and GiB, and how many there are; no name where there is no card."""
    if shutil.which(_COMMAND) is None:
        return {"card": None}
    query = "--query-gpu=name,driver_version,memory.total"
    asked = [_COMMAND, "--format=csv,noheader,nounits", query]
    if visible := _visible():
        asked.append(f"--id={','.join(visible)}")
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() or [""]
    words = [word.strip() for word in lines[0].split(",")]
    if done.returncode or len(words) != len(query.split(",")):
        return {"card": None}
    name, driver, memory = words
    gib = round(float(memory) / _MIB_OF_A_GIB, 1)
    return {"card": name, "driver": driver, "memory_gib": gib, "cards": len(lines)}


def short_name(card: str | None) -> str | None:
    """Ray's name of a card, which is the first of its words with a digit: H100, A10G, L4."""
    words = re.split(r"[\s-]+", card or "")
    return next((word for word in words if any(sign.isdigit() for sign in word)), None)


@contextlib.contextmanager
def sampled() -> Iterator[list[Sample]]:
    """What it does meanwhile, several times a second; nothing without a card."""
    samples = list[Sample]()
    if shutil.which(_COMMAND) is None:
        yield samples
        return
    query = "--query-gpu=utilization.gpu,memory.used,power.draw"
    command = [_COMMAND, f"--id={(_visible() or ['0'])[0]}", query, "--format=csv,noheader,nounits"]
    command += ["-lms", str(_SAMPLE_MILLISECONDS)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=_read, args=(process.stdout, samples), daemon=True)
        reader.start()
        try:
            yield samples
        finally:
            process.kill()
            reader.join(5)


def _visible() -> list[str]:
    """The numbers of the cards that CUDA shows to this run; none if it shows all."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",") if visible else []


def _read(lines: IO[str], samples: list[Sample]) -> None:
    for line in lines:
        # A value that the card does not know is written in words.
        with contextlib.suppress(ValueError):
            busy, memory, watts = (float(word) for word in line.split(","))
            samples.append((busy, memory / _MIB_OF_A_GIB, watts))
