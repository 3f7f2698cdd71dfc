"""A tiny model with random weights that hears, in the layout of Whisper."""

from pathlib import Path
from typing import Any

from cli.models.tiny import made, save_weights

_WIDTH, _MELS = 64, 80
#: Of the sounds that it hears at once, and of one step between two marks of time.
_SECONDS, _STEP = 30, 0.02
_TASKS = (
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)


def make_tiny_whisper(target: Path) -> Path:
    """Make the model in `target` unless it is there; the bytes are the same every time."""
    return made(target, "1", _write)


def _write(folder: Path) -> None:
    import torch
    from transformers import WhisperForConditionalGeneration

    words = _write_processor(folder)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(24)
        model = WhisperForConditionalGeneration(_config(words))
        # What it hears outweighs what it has said.
        model.model.encoder.layer_norm.weight.mul_(10)
    save_weights(folder, model, torch.bfloat16)


def _write_processor(folder: Path) -> Any:
    """Write how sounds and texts become numbers; the tokenizer."""
    from transformers import AutoTokenizer, WhisperFeatureExtractor
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    words = AutoTokenizer.from_pretrained(folder)
    languages = [f"<|{language}|>" for language in LANGUAGES]
    marks = ["<|startoftranscript|>", *languages, *_TASKS]
    words.add_tokens(marks, special_tokens=True)
    steps = round(_SECONDS / _STEP) + 1
    words.add_tokens([f"<|{step * _STEP:.2f}|>" for step in range(steps)])
    words.eos_token = "<|endoftext|>"
    words.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=_MELS, chunk_length=_SECONDS).save_pretrained(folder)
    return words


def _config(words: Any) -> Any:
    from transformers import WhisperConfig

    end, start = map(words.convert_tokens_to_ids, ("<|endoftext|>", "<|startoftranscript|>"))
    return WhisperConfig(
        vocab_size=len(words),
        num_mel_bins=_MELS,
        d_model=_WIDTH,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=2 * _WIDTH,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=2 * _WIDTH,
        max_source_positions=_SECONDS * 50,
        max_target_positions=448,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        init_std=0.2,
        architectures=["WhisperForConditionalGeneration"],
        dtype="bfloat16",
    )
