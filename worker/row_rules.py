"""The rules of a model's requests, in the replica that runs its engine. Pure.

Planning has checked the rows already. The engine checks them again, because a lane job of another
version, or a changed catalog, may send it what it must not run.
"""

from collections.abc import Mapping
from typing import Any

from shared.catalog import Model
from shared.openai.media import MediaRules
from shared.openai.row_rules import DEFAULT_RULES, RowRules
from worker.engine_errors import Answer
from worker.engine_results import refusal

#: The environment variable that holds the rules for a replica.
ROW_RULES_VARIABLE = "BATCHYARD_ROW_RULES"


#: The variable by which vLLM finds what loads its media, and the name of ours.
MEDIA_CONNECTOR_VARIABLE, MEDIA_CONNECTOR = "VLLM_MEDIA_CONNECTOR", "batchyard"


def rules_environment(model: Model) -> dict[str, str]:
    """What the environment of the model's replicas says about its rules, to us and to vLLM."""
    limits = model.media_limits
    return {
        ROW_RULES_VARIABLE: _as_data(model.row_rules).model_dump_json(),
        MEDIA_CONNECTOR_VARIABLE: MEDIA_CONNECTOR,
        # These are vLLM's own, which it looks at before it decodes.
        "VLLM_MAX_IMAGE_PIXELS": str(limits.pixels),
        "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": str(-(-limits.bytes // 2**20)),
        "VLLM_MAX_AUDIO_DECODE_DURATION_S": str(limits.seconds),
    }


def _as_data(rules: RowRules) -> RowRules:
    """The rules of requests whose media have been fetched for them."""
    return rules.model_copy(update={"media": MediaRules(limits=rules.media.limits)})


def rules_from(environment: Mapping[str, str]) -> RowRules:
    """The rules in a replica's environment."""
    text = environment.get(ROW_RULES_VARIABLE)
    return RowRules.model_validate_json(text) if text else DEFAULT_RULES


def refused(rules: RowRules, url: str, body: Any, *, is_live: bool = False) -> Answer | None:
    """The result of a request that breaks the rules; None if it may run.

    The body is as the tenant wrote it, without the fields that the worker sets. What is no object
    is left to the engine, which refuses it.
    """
    found = rules.refusal(url, body, is_live=is_live) if isinstance(body, dict) else None
    return found and refusal(f"{found.message}.", param=found.param)


def bounded_result(rules: RowRules, result: Answer) -> Answer:
    """The result, or an error in its place if it has more bytes than the model's results may."""
    most = rules.limits.result_bytes
    if len(result[1]) <= most:
        return result
    return refusal(
        f"The answer has {len(result[1])} bytes, and an answer of this model may have {most}. Ask "
        "for fewer answers, tokens or logprobs.",
        code="result_too_large",
    )
