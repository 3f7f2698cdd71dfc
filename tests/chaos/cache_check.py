"""Decides from the evidence whether rows were given answers of before that are not theirs. Pure.

That such an answer is the one that the engine gives to the row is checked with all other lines.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from shared import ids
from tests.chaos.evidence import Evidence
from tests.chaos.pipeline_rows import FIRST

#: How a line ends whose answer was given before.
_CACHED = b'"cached":true}'
#: A tenant, a model, and how long its prompts are: what rows of one name have in common.
_Asker = tuple[str, str, int]


def asked_key(intent: Mapping[str, Any]) -> str:
    """The key whose requests a batch has; mostly its own."""
    key: str = intent.get("asks", intent["key"])
    return key


def is_cached(line: bytes) -> bool:
    """Whether the result line says that its answer was given before."""
    return line.rstrip().endswith(_CACHED)


def broken_cache_promises(evidence: Evidence) -> Iterator[tuple[str, str, str]]:
    """Answers of before in batches that asked for none, or that their tenants never got.

    What the engine answered is known by batch and name, and a row of one name is the same in all
    batches with a cache.
    """
    askers = dict(_askers(evidence))
    answered: defaultdict[_Asker, set[str]] = defaultdict(set)
    for one in evidence.answers:
        if (asker := askers.get(one["batch"])) is not None:
            answered[asker].update(one["rows"])
    for intent in evidence.published:
        if intent["what"] != "intended":
            continue
        batch = intent["batch"]
        for name in _cached_names(batch, evidence):
            if batch not in askers:
                yield "cached_unasked", batch, f"{name} has an answer of before"
            elif name not in answered[askers[batch]]:
                yield "cached_of_others", batch, f"its tenant was never answered {name}"


def _askers(evidence: Evidence) -> Iterator[tuple[str, _Asker]]:
    """The batches with a cache, those of pipelines' first calls among them."""
    for intent in evidence.published:
        if not intent.get("cache"):
            continue
        asker = intent["tenant"], intent["model"], intent.get("padding", 0)
        if intent["what"] == "intended":
            yield intent["batch"], asker
        elif intent["what"] == "pipeline":
            message = ids.stage_message_id(intent["pipeline"], FIRST)
            yield ids.batch_id(intent["tenant"], message), asker


def _cached_names(batch_id: str, evidence: Evidence) -> Iterator[str]:
    stored = evidence.redis.get(f"batch:{batch_id}", {}).get("output_object")
    body = evidence.bodies.get(json.loads(stored)["key"], b"") if stored else b""
    for line in body.splitlines():
        if is_cached(line):
            yield json.loads(line)["custom_id"]
