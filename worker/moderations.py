"""OpenAI's moderations, made of what vLLM's classifier answers.

vLLM's app gets one more route, so that rows and live calls find it as they find vLLM's own.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shared.catalog import Model, Moderation
from shared.openai.bodies import Refusal, read_body
from shared.openai.bodies.moderation import ModerationBody
from worker.engine_results import SUCCESS, refusal

#: The environment variable that holds the model's `moderation` for a replica and its fronts.
MODERATION_VARIABLE = "BATCHYARD_MODERATION"
_PATH = "/v1/moderations"


def moderation_environment(model: Model) -> dict[str, str]:
    """What the environment of the model's replicas says of its labels."""
    if model.moderation is None:
        return {}
    return {MODERATION_VARIABLE: model.moderation.model_dump_json()}


def moderation_from(environment: Mapping[str, str]) -> Moderation:
    """What the environment of a replica says of the model's labels."""
    text = environment.get(MODERATION_VARIABLE)
    return Moderation.model_validate_json(text) if text else Moderation()


def add_moderations(app: Any, moderation: Moderation) -> None:
    """Let vLLM's app answer moderations, if its model classifies."""
    serving = getattr(app.state, "serving_classification", None)
    if serving is None:
        return
    from fastapi import Request, Response
    from pydantic import TypeAdapter
    from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest

    # The labels of an older model may be named by text.
    config = serving.model_config.hf_config
    labels = {int(number): label for number, label in (config.id2label or {}).items()}
    read_request = TypeAdapter(ClassificationRequest).validate_python

    async def moderate(raw: Request) -> Response:
        body = read_body(ModerationBody, await raw.json())
        if not isinstance(body, ModerationBody):
            message, param = (body.message, body.param) if isinstance(body, Refusal) else ("", None)
            status, content = refusal(f"{message}.", param=param)
            return Response(content, status, media_type="application/json")
        answer = await serving(read_request(body.as_classification()), raw)
        if answer.status_code != SUCCESS:
            return answer  # type: ignore[no-any-return]  # vLLM's
        found = moderated(json.loads(answer.body), labels, moderation)
        return Response(json.dumps(found), media_type="application/json")

    app.add_api_route(_PATH, moderate, methods=["POST"])


def moderated(
    answer: Mapping[str, Any], labels: Mapping[int, str], moderation: Moderation
) -> dict[str, Any]:
    """OpenAI's form of a classification: each label that means harm is a category."""
    return {
        "id": f"modr-{answer['id'].removeprefix('classify-')}",
        "model": answer["model"],
        "results": [_result(one["probs"], labels, moderation) for one in answer["data"]],
        "usage": answer["usage"],
    }


def _result(
    scores: Sequence[float], labels: Mapping[int, str], moderation: Moderation
) -> dict[str, Any]:
    named = {labels.get(number, f"LABEL_{number}"): score for number, score in enumerate(scores)}
    harmful = {label: score for label, score in named.items() if moderation.is_harm(label)}
    categories = {label: score >= moderation.threshold for label, score in harmful.items()}
    return {
        "flagged": any(categories.values()),
        "categories": categories,
        "category_scores": harmful,
        "category_applied_input_types": {label: ["text"] for label in harmful},
    }
