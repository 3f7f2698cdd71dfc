"""The rules of a model's requests, in the replica that runs its engine. Pure.

Planning has checked the rows already. The engine checks them again, because a lane job of another
version, or a changed catalog, may send it what it must not run.
"""

from collections.abc import Mapping
from typing import Any

from shared.catalog import Model
from shared.openai.row_rules import DEFAULT_RULES, RowRules
from worker.engine_errors import Result
from worker.engine_results import refusal

#: The environment variable that holds the rules for a replica.
ROW_RULES_VARIABLE = "BATCHYARD_ROW_RULES"


#: A domain that no name server knows. Without any, vLLM would download from everywhere.
_NOWHERE = "nowhere.invalid"


def rules_environment(model: Model) -> dict[str, str]:
    """What the environment of the model's replicas says about its rules, to us and to vLLM."""
    return {
        ROW_RULES_VARIABLE: model.row_rules.model_dump_json(),
        # A redirect would lead from a domain that is allowed to one that is not.
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    }


def rules_arguments(model: Model) -> dict[str, Any]:
    """The arguments by which vLLM keeps the rules itself."""
    return {"allowed_media_domains": sorted(model.media_domains) or [_NOWHERE]}


def rules_from(environment: Mapping[str, str]) -> RowRules:
    """The rules in a replica's environment."""
    text = environment.get(ROW_RULES_VARIABLE)
    return RowRules.model_validate_json(text) if text else DEFAULT_RULES


def refused(rules: RowRules, url: str, body: Any) -> Result | None:
    """The result of a request that breaks the rules; None if it may run.

    The body is as the tenant wrote it, without the fields that the worker sets. What is no object
    is left to the engine, which refuses it.
    """
    found = rules.refusal(url, body) if isinstance(body, dict) else None
    return found and refusal(f"{found.message}.", param=found.param)


def bounded_result(rules: RowRules, result: Result) -> Result:
    """The result, or an error in its place if it has more bytes than the model's results may."""
    most = rules.limits.result_bytes
    if len(result[1]) <= most:
        return result
    return refusal(
        f"The answer has {len(result[1])} bytes, and an answer of this model may have {most}. Ask "
        "for fewer answers, tokens or logprobs.",
        code="result_too_large",
    )
