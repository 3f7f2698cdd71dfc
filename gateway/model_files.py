"""A model's small files, on this machine only: its own folder, or Hugging Face's cache of it."""

import json
from pathlib import Path
from typing import Any

import structlog
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from shared.catalog import Model

log = structlog.get_logger()

#: What configurations call the longest sequence. vLLM reads the same names and takes the minimum.
_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
#: Kinds of rope scaling whose factor is already part of the length.
_SCALED = ("default", "llama3", "mrope")
#: Of Sentence Transformers' files, those that vLLM looks for, in its order.
_SENTENCES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_THOUSANDS = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}


class ModelFiles:
    """The files of one source. Nothing is ever downloaded."""

    def __init__(self, source: str, revision: str | None = None) -> None:
        self._source = source
        self._revision = revision

    def find(self, name: str) -> Path | None:
        """The file's path; None if it is not on this machine."""
        folder = Path(self._source)
        if folder.is_dir():
            return folder / name if (folder / name).is_file() else None
        try:
            found = try_to_load_from_cache(self._source, name, revision=self._revision)
        except HFValidationError:
            return None
        return Path(found) if isinstance(found, str) else None

    def matching(self, pattern: str) -> list[Path]:
        """The files on this machine whose names match the pattern, as `glob` has them."""
        folder = Path(self._source)
        if not folder.is_dir():
            known = self.find("config.json")
            if known is None:
                return []
            folder = known.parent
        return sorted(folder.glob(pattern))

    def lowers_texts(self) -> bool:
        """Whether a model of Sentence Transformers wants its texts in lower case."""
        for name in _SENTENCES:
            found = self.read_json(f"sentence_{name}_config.json")
            if found:
                return "max_seq_length" in found and found.get("do_lower_case") is True
        return False

    def read_json(self, name: str) -> dict[str, Any]:
        """The JSON object in the file; empty if there is no such file, or no object in it."""
        path = self.find(name)
        if path is None:
            return {}
        try:
            value = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            log.warning("model_file.unreadable", file=str(path), reason=str(error))
            return {}
        return value if isinstance(value, dict) else {}


def max_model_len(model: Model) -> int | None:
    """The maximum of prompt and output tokens together; None if it is not known here."""
    configured = _count(model.engine.get("max_model_len"))
    return configured or _derived(ModelFiles(model.source, model.revision), model.runner)


def _derived(files: ModelFiles, runner: str) -> int | None:
    config = files.read_json("config.json")
    text = config.get("text_config")
    if not isinstance(text, dict):
        text = config
    lengths = [value for name in _LENGTHS if (value := _count(text.get(name)))]
    if runner == "pooling":
        if sentence := _count(files.read_json("sentence_bert_config.json").get("max_seq_length")):
            return sentence
        if asked := _count(files.read_json("tokenizer_config.json").get("model_max_length")):
            lengths.append(asked)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind = scaling.get("rope_type") or scaling.get("type") if isinstance(scaling, dict) else "?"
    if not lengths or (scaling and kind not in _SCALED):
        return None
    return min(lengths)


def _count(value: object) -> int | None:
    """A positive number of tokens, also in vLLM's spelling `32k`; None for anything else."""
    if isinstance(value, str) and value[:-1].isdecimal() and value[-1] in _THOUSANDS:
        value = int(value[:-1]) * _THOUSANDS[value[-1]]
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    # Some tokenizers write 10**30 for "no limit".
    return int(value) if is_number and 0 < value < 2**31 else None  # type: ignore[call-overload, operator]
