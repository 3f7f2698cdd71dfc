"""What grammars cost is found out in another process, with the compiler that engines have."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cli.models.tiny import make_tiny_chat_model
from shared.openai.row_limits import RowLimits
from tests.processes import below_this, environment
from worker.engine_errors import Result
from worker.grammar_gate import GrammarGate
from worker.grammars import Grammar

pytest.importorskip("xgrammar", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(600),
    # Transformers warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

_GOOD = Grammar("response_format", "json", json.dumps({"enum": ["good", "bad"]}))
#: A thousand bytes that repeat what repeats.
_DEEP = {
    "properties": {
        f"p{n}": {"type": "string", "pattern": "^([a-z]{1,200}){1,200}$"} for n in range(20)
    }
}
_LIMITS = RowLimits(grammar_seconds=2, grammar_bytes=512 * 1024 * 1024)


def _explosion(number: int) -> Grammar:
    """Its size says nothing: it would take minutes."""
    return Grammar("structured_outputs", "regex", f"(.?){{1,{15_000 + number}}}x")


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> str:
    import xgrammar
    from transformers import AutoTokenizer

    folder: Path = make_tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return xgrammar.TokenizerInfo.from_huggingface(tokenizer).serialize_json()


@pytest.fixture
async def gate(description: str) -> AsyncIterator[GrammarGate]:
    gate = GrammarGate(_LIMITS, lambda: description)
    yield gate
    await gate.close()


async def _refused(gate: GrammarGate, grammar: Grammar, tenant: str = "acme") -> Result | None:
    return await gate.refused(tenant, [grammar])


def _schema(**fields: Any) -> Grammar:
    return Grammar("response_format", "json", json.dumps(fields))


@pytest.mark.parametrize(
    "grammar",
    [
        _GOOD,
        _schema(type="object", properties={f"p{n}": {"type": "string"} for n in range(50)}),
        _schema(enum=[f"the value number {n}" for n in range(3000)]),
        _schema(type="array", items={"type": "integer"}, minItems=500, maxItems=1000),
        # What is wrong with these, the engine says in its own words.
        _schema(type="objekt"),
        Grammar("structured_outputs", "regex", "(("),
        Grammar("structured_outputs", "ebnf", "root ::="),
    ],
    ids=lambda grammar: grammar.text[:40],
)
async def test_what_compiles_within_the_limits_goes_on(gate: GrammarGate, grammar: Grammar) -> None:
    assert await _refused(gate, grammar) is None


@pytest.mark.parametrize(
    "grammar",
    [
        _explosion(0),
        _schema(**_DEEP),
        # In Lark's syntax, which vLLM translates before it compiles.
        Grammar(
            "structured_outputs",
            "ebnf",
            'start: (a | b){1,3000} "x"\na: (b | "c"){1,3000}\nb: ("d" | "e" | ""){1,3000}\n',
        ),
        # The older form of structural tags, which vLLM still takes.
        Grammar(
            "response_format",
            "structural_tag",
            json.dumps(
                {
                    "type": "structural_tag",
                    "structures": [{"begin": "<a>", "schema": _DEEP, "end": "</a>"}],
                    "triggers": ["<a"],
                }
            ),
        ),
        # vLLM hands these to a compiler without limits.
        _schema(type="object", patternProperties={"^(.?){1,5000}$": {"type": "string"}}),
        Grammar(
            "structured_outputs",
            "json",
            r'{"type": "object", "pattern\u0050roperties": {"^(.?){1,5000}$": {}}}',
        ),
        # Reading it alone holds up whoever reads it.
        Grammar("response_format", "json", '{"type":"array","items":' * 600 + "{}" + "}" * 600),
    ],
    ids=lambda grammar: grammar.text[:40],
)  # fmt: skip
async def test_what_explodes_is_refused_by_the_name_of_its_field(
    gate: GrammarGate, grammar: Grammar
) -> None:
    result = await _refused(gate, grammar)

    assert result is not None
    error = json.loads(result[1])["error"]
    assert (result[0], error["code"]) == (400, "grammar_too_complex")
    assert error["param"] == grammar.param
    # Nobody learns a tenant's grammar from a log.
    assert grammar.text[:20] not in error["message"]


async def test_the_memory_of_a_compiler_has_an_end(description: str) -> None:
    limits = RowLimits(grammar_seconds=60, grammar_bytes=1024 * 1024)
    gate = GrammarGate(limits, lambda: description)
    large = _schema(enum=[f"the value number {n}" for n in range(5000)])
    try:
        result = await _refused(gate, large)
    finally:
        await gate.close()

    assert result is not None
    assert json.loads(result[1])["error"]["code"] == "grammar_too_complex"


async def test_a_verdict_is_kept(gate: GrammarGate) -> None:
    await _refused(gate, _explosion(0))
    began = time.monotonic()

    for tenant in ("acme", "other"):
        for _ in range(50):
            assert await _refused(gate, _explosion(0), tenant) is not None

    assert time.monotonic() - began < 1


async def test_a_tenant_whose_grammars_explode_waits_for_its_own(gate: GrammarGate) -> None:
    await _refused(gate, _GOOD)
    bad = [asyncio.ensure_future(_refused(gate, _explosion(n), "mallory")) for n in range(1, 4)]

    good = await _refused(gate, _schema(enum=["fresh"]), "neighbour")
    ended = [one for one in bad if one.done()]
    results = await asyncio.gather(*bad)

    assert good is None
    assert ended == []
    assert all(result is not None for result in results)


async def test_a_process_that_was_killed_is_started_again(gate: GrammarGate) -> None:
    await _refused(gate, _GOOD)
    # Engines of other tests have some, too, and it may have forked one that ends.
    [process] = below_this("worker.grammar_trial", directly=True)
    trial = asyncio.ensure_future(_refused(gate, _explosion(5)))
    await asyncio.sleep(0)
    process.kill()
    process.wait()

    result = await trial

    # Nobody is told that a grammar is wrong that was not tried.
    assert result is not None
    assert (result[0], json.loads(result[1])["error"]["code"]) == (500, "grammar_not_tried")
    assert await _refused(gate, _schema(enum=["another"])) is None


async def test_its_process_knows_no_secrets(
    gate: GrammarGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHYARD_S3_SECRET_KEY", "the-secret")
    # Engines of other tests have some, too.
    others = below_this("worker.grammar_trial")
    await _refused(gate, _GOOD)

    # It may have forked one that ends.
    own = [one for one in below_this("worker.grammar_trial") if one not in others]
    known = [value for one in own for value in environment(one).values()]
    assert known
    assert "the-secret" not in known
