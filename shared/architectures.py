"""What a model's engine does, as vLLM 0.29 finds it out from the model's own files. Pure.

vLLM knows it once it has loaded the model. Whoever accepts a batch has to know it before, and may
have no vLLM. `tests/engine/test_architectures.py` compares the two.
"""

from collections.abc import Mapping
from typing import Any

from shared.openai.endpoints import GENERATING, POOLING, Task

#: By the end of an architecture's name, what its engine does; the first that fits counts.
BY_ENDING: tuple[tuple[str, Task], ...] = (
    ("ForCausalLM", "generate"),
    ("ForConditionalGeneration", "generate"),
    ("ChatModel", "generate"),
    ("LMHeadModel", "generate"),
    ("ForTextEncoding", "embed"),
    ("EmbeddingModel", "embed"),
    ("ForSequenceClassification", "classify"),
    ("ForTokenClassification", "token_classify"),
    ("ForAudioClassification", "classify"),
    ("ForImageClassification", "classify"),
    ("ForVideoClassification", "classify"),
    ("ClassificationModel", "classify"),
    ("ForRewardModeling", "embed"),
    ("RewardModel", "embed"),
    ("Model", "embed"),
)
#: What vLLM's own classes do whose names say something else, or nothing.
BY_NAME: Mapping[str, tuple[Task, ...]] = {
    "BertForMaskedLM": ("embed",),
    "BgeM3EmbeddingModel": ("embed&token_classify",),
    "ColBERTJinaRobertaModel": ("token_embed",),
    "ColBERTLfm2Model": ("token_embed",),
    "ColBERTModernBertModel": ("token_embed",),
    "ColModernVBertForRetrieval": ("token_embed",),
    "ColPaliForRetrieval": ("token_embed",),
    "ColQwen3": ("token_embed",),
    "ColQwen3_5": ("token_embed",),
    "HF_ColBERT": ("token_embed",),
    "InternLM2ForRewardModel": ("token_classify",),
    "JinaForRanking": ("token_embed",),
    "JinaVLForRanking": ("rerank",),
    "OpsColQwen3Model": ("token_embed",),
    "Qwen2ForProcessRewardModel": ("token_classify",),
    "Qwen2ForRewardModel": ("token_classify",),
    "Qwen3VLNemotronEmbedModel": ("token_embed",),
    "RobertaForMaskedLM": ("embed",),
    "Terratorch": ("plugin",),
    # Models that hear: some write nothing else than what they hear.
    "CohereAsrForConditionalGeneration": ("transcription",),
    "FireRedASR2ForConditionalGeneration": ("transcription",),
    "FunASRForConditionalGeneration": ("transcription",),
    "MossTranscribeDiarizeForConditionalGeneration": ("transcription",),
    "WhisperForConditionalGeneration": ("transcription",),
    "Gemma3nForConditionalGeneration": ("generate", "transcription"),
    "GlmAsrForConditionalGeneration": ("generate", "transcription"),
    "GraniteSpeechForConditionalGeneration": ("generate", "transcription"),
    "MoonshotKimiaForCausalLM": ("generate", "transcription"),
    "Qwen3ASRForConditionalGeneration": ("generate", "transcription"),
    "Qwen3OmniMoeForConditionalGeneration": ("generate", "transcription"),
    "VoxtralForConditionalGeneration": ("generate", "transcription"),
    "VoxtralRealtimeGeneration": ("generate", "transcription"),
}
#: Labels of a classifier whose configuration names none.
_DEFAULT_LABELS = 2


def tasks_of(
    config: Mapping[str, Any], engine: Mapping[str, Any], *, is_sentence_transformer: bool = False
) -> tuple[Task, ...]:
    """What an engine with these arguments does with a model of this `config.json`.

    Without a configuration this is what follows from the arguments alone.
    """
    merged = {**config, **_object(engine.get("hf_overrides"))}
    asked = _object(engine.get("pooler_config")).get("task")
    for task in POOLING:
        if task == asked:
            return (_with_labels(task, merged),)
    natural = _natural(merged, is_sentence_transformer=is_sentence_transformer)
    runner, convert = engine.get("runner", "auto"), engine.get("convert", "auto")
    if runner == "auto" and convert not in ("auto", "none"):
        runner = "pooling"
    generates = any(task in GENERATING for task in natural)
    if runner == "generate" or (runner == "auto" and generates):
        return natural if generates else ("generate",)
    if convert == "classify":
        return (_with_labels("classify", merged),)
    if convert == "embed" or generates:
        return ("embed",)
    return tuple(_with_labels(task, merged) for task in natural)


def _natural(config: Mapping[str, Any], *, is_sentence_transformer: bool) -> tuple[Task, ...]:
    """What the model was made for."""
    names = config.get("architectures")
    found = next(filter(None, map(_by_name, names if isinstance(names, list) else ())), None)
    if is_sentence_transformer and (found is None or found[0] in GENERATING):
        return ("embed",)
    return found or ("generate",)


def _by_name(name: object) -> tuple[Task, ...] | None:
    if not isinstance(name, str):
        return None
    ending = next((task for end, task in BY_ENDING if name.endswith(end)), None)
    return BY_NAME.get(name) or (ending and (ending,))


def _with_labels(task: Task, config: Mapping[str, Any]) -> Task:
    """A classifier of one label scores pairs as well."""
    return "rerank" if task == "classify" and _labels(config) == 1 else task


def _labels(config: Mapping[str, Any]) -> int:
    places = (config, _object(config.get("text_config")))
    for place in places:
        tokens = place.get("classifier_from_token")
        if isinstance(tokens, list) and tokens:
            # A yes and a no make one score together.
            return 1 if place.get("method") == "from_2_way_softmax" else len(tokens)
    for place in places:
        for value in (place.get("num_labels"), place.get("id2label")):
            if isinstance(value, int):
                return value
            if isinstance(value, dict) and value:
                return len(value)
    return _DEFAULT_LABELS


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
