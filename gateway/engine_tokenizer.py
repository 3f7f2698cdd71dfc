"""What a model's engine tokenizes with, asked of transformers in a process of its own.

vLLM lets transformers load tokenizers, and for many models that builds another one than their
tokenizer.json says: of Qwen's, each digit is a token of its own whatever the file has. The process
ends when it has answered, so the gateway never holds transformers.
"""

import os
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

import msgspec
import structlog

from gateway.model_files import ModelFiles

log = structlog.get_logger()

#: A start with cold files takes seconds. A gateway that stops waits for it.
_SECONDS = 30.0
#: Of a model whose tokenizer could not be read, it is not asked again for so long.
_AGAIN_SECONDS = 60.0
#: Models whose declared tokenizer vLLM replaces by the one of their tokenizer.json.
_AS_THE_FILE_SAYS = frozenset({"internlm2", "step3_vl", "step3p7", "unlimited-ocr"})
#: Models whose chats vLLM renders by code instead of a template, or tokenizes in its own way.
_OWN_MODES = frozenset(
    {"deepseek_v32", "deepseek_v4", "inkling", "kimi_audio", "kimi_k3", "cohere", "terratorch"}
)
_OWN_ARCHITECTURES = frozenset(
    {
        "DeepseekV32ForCausalLM",
        "DeepseekV4ForCausalLM",
        "InklingForCausalLM",
        "InklingForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "MoonshotKimiaForCausalLM",
    }
)
#: What says where Hugging Face's cache is, and what the interpreter needs.
_PASSED = ("HF_HOME", "HF_HUB_CACHE", "HOME", "LANG", "PATH", "XDG_CACHE_HOME")


class EngineTokenizer(msgspec.Struct, frozen=True):
    """A tokenizer in the form of the library tokenizers, and what chats are rendered with."""

    text: str
    #: As transformers gives them to templates, such as `bos_token`.
    special_tokens: dict[str, str]
    #: One template, or several by name.
    chat_template: str | dict[str, str] | None = None
    #: Whether special tokens in a text are split like other text.
    splits_special: bool = False


class Asked(msgspec.Struct, frozen=True):
    """The source of a tokenizer: a folder, or a name in Hugging Face's cache."""

    source: str
    revision: str | None = None


class _Known(NamedTuple):
    """What was said of a tokenizer, and when."""

    answer: EngineTokenizer | None
    at: float


_known: dict[Asked, _Known] = {}
#: One process at a time: each takes a core and 75 MB.
_asking = threading.Lock()


def engine_tokenizer(source: str, revision: str | None = None) -> EngineTokenizer | None:
    """What the engine of these files tokenizes with; None if that is not known here.

    Slow the first time; every other time it is what was said then.
    """
    asked = Asked(source, revision)
    with _asking:
        known = _known.get(asked)
        if known is None or (known.answer is None and time.monotonic() - known.at > _AGAIN_SECONDS):
            known = _known[asked] = _Known(_said(source, revision), time.monotonic())
        return known.answer


def _said(source: str, revision: str | None) -> EngineTokenizer | None:
    if not has_usual_tokenizer(ModelFiles(source, revision)):
        return None
    environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
    try:
        answer = subprocess.run(  # ourselves
            [sys.executable, "-I", "-m", "gateway.engine_tokenizer"],
            input=msgspec.json.encode(Asked(source, revision)),
            env=environment | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
            capture_output=True,
            timeout=_SECONDS,
            check=True,
        )
        return msgspec.json.decode(answer.stdout, type=EngineTokenizer | None)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        reason = said.rpartition("\n")[2][:200] or type(error).__name__
        log.warning("tokenizer.unanswered", source=source, reason=reason)
        return None


def has_usual_tokenizer(files: ModelFiles) -> bool:
    """Whether the engine takes transformers' tokenizer for the files, and not one of its own."""
    found = files.read_json("config.json").get("architectures")
    if isinstance(found, list) and _OWN_ARCHITECTURES & {one for one in found if type(one) is str}:
        return False
    # vLLM prefers Mistral's own tokenizer where both lie beside each other.
    return not (files.matching("consolidated*.safetensors") and _has_mistrals(files))


def _has_mistrals(files: ModelFiles) -> bool:
    return bool(files.matching("tekken.json") or files.matching("tokenizer.model.v*"))


def is_own_mode(mode: object) -> bool:
    """Whether the engine has its own code for this `tokenizer_mode`."""
    return mode == "mistral" or mode in _OWN_MODES


def read(asked: Asked) -> EngineTokenizer | None:
    """Load the tokenizer as vLLM does. Imports transformers; raises what that raises."""
    from transformers import AutoTokenizer, TokenizersBackend  # noqa: PLC0415  # not in the gateway

    files = ModelFiles(asked.source, asked.revision)
    config = files.read_json("config.json")
    model_type = config.get("model_type")
    loader: Any = TokenizersBackend if model_type in _AS_THE_FILE_SAYS else AutoTokenizer
    # Code that comes with a model is not run here.
    found = loader.from_pretrained(
        asked.source, revision=asked.revision, local_files_only=True, trust_remote_code=False
    )
    if not isinstance(found, TokenizersBackend):
        return None
    if files.lowers_texts():
        found.add_special_tokens({k: v.lower() for k, v in found.special_tokens_map.items()})
    return EngineTokenizer(
        found.backend_tokenizer.to_str(),
        found.special_tokens_map,
        None if model_type == "gpt_oss" else _template(files, found.chat_template),
        bool(getattr(found, "split_special_tokens", False)),
    )


def _template(files: ModelFiles, of_tokenizer: Any) -> str | dict[str, str] | None:
    """The template; that of a model's processor goes before its tokenizer's, except with tools."""
    legacy = files.read_json("chat_template.json").get("chat_template")
    if not isinstance(legacy, str) or files.find("chat_template.jinja"):
        return of_tokenizer if isinstance(of_tokenizer, str | dict) else None
    named = of_tokenizer if isinstance(of_tokenizer, dict) else {}
    with_tools = named.get("tool_use") or named.get("default") or of_tokenizer
    return {"default": legacy} | ({"tool_use": with_tools} if isinstance(with_tools, str) else {})


def main() -> None:
    """Answer the question on the standard input."""
    # Where torch is installed, transformers would take seconds to import it.
    sys.modules["torch"] = None  # type: ignore[assignment]
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Asked)
    sys.stdout.buffer.write(msgspec.json.encode(read(asked)))


if __name__ == "__main__":
    main()
