import json

import pytest

from shared.openai.row_limits import RowLimits
from worker.grammar_gate import GrammarGate
from worker.grammars import grammars


@pytest.mark.parametrize("outputs", [{"regex": "a\ud83d"}, {"grammar": "root ::= \udfff"}])
async def test_a_grammar_with_half_a_surrogate_pair_is_the_requests_own_fault(
    outputs: dict[str, object],
) -> None:
    gate = GrammarGate(RowLimits(), lambda: pytest.fail("it needs no tokenizer"))

    found = await gate.refused("acme", grammars({"structured_outputs": outputs}))

    assert found is not None
    assert found[0] == 400
    assert json.loads(found[1])["error"]["param"].startswith("structured_outputs")
