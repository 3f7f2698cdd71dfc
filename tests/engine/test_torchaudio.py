"""torchaudio beside a torch without CUDA: spectra are right, and compiled functions say no."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchaudio", reason="needs the worker's dependencies")
pytestmark = pytest.mark.filterwarnings("ignore")

_RATE, _SECONDS, _BINS = 16_000, 2, 80


def _noise() -> np.ndarray:
    return np.random.default_rng(1).normal(0, 0.1, _RATE * _SECONDS).astype(np.float32)


def test_what_fun_asr_hears_is_what_transformers_computes_without_torchaudio() -> None:
    import torch
    from transformers import audio_utils
    from vllm.transformers_utils.processors.funasr import WavFrontend

    noise = _noise()
    without: Any = None
    front = WavFrontend(cmvn_file=without, fs=_RATE, window="povey", n_mels=_BINS, dither=0.0)

    [found], _ = front(torch.from_numpy(noise)[None], [len(noise)])

    filters = audio_utils.mel_filter_bank(
        num_frequency_bins=257,
        num_mel_filters=_BINS,
        min_frequency=20,
        max_frequency=_RATE / 2,
        sampling_rate=_RATE,
        mel_scale="kaldi",
        triangularize_in_mel_space=True,
    )
    expected = audio_utils.spectrogram(
        noise * (1 << 15),
        audio_utils.window_function(400, "povey", periodic=False),
        frame_length=400,
        hop_length=160,
        fft_length=512,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=filters,
        log_mel="log",
        mel_floor=1.192092955078125e-07,
        remove_dc_offset=True,
    )
    np.testing.assert_allclose(found, expected.T, atol=1e-3)


def test_what_midasheng_hears_is_what_transformers_computes_without_torchaudio() -> None:
    import torch
    from transformers import audio_utils
    from vllm.model_executor.models.midashenglm import DashengFrontend
    from vllm.transformers_utils.configs.midashenglm import DashengConfig

    noise, config = _noise(), DashengConfig()

    [found] = DashengFrontend(config)(torch.from_numpy(noise)[None])

    filters = audio_utils.mel_filter_bank(
        num_frequency_bins=config.n_fft // 2 + 1,
        num_mel_filters=config.n_mels,
        min_frequency=config.f_min,
        max_frequency=config.f_max,
        sampling_rate=config.sample_rate,
    )
    expected = audio_utils.spectrogram(
        noise,
        audio_utils.window_function(config.win_length, "hann"),
        frame_length=config.win_length,
        hop_length=config.hop_length,
        fft_length=config.n_fft,
        power=2.0,
        center=config.center,
        mel_filters=filters,
        log_mel="dB",
        db_range=120,
    )
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_what_cohere_asr_weighs_frequencies_with_is_what_transformers_computes() -> None:
    import torch
    from transformers import audio_utils
    from vllm.transformers_utils.processors.cohere_asr import FilterbankFeatures

    features = FilterbankFeatures(nfilt=_BINS)  # type: ignore[no-untyped-call]  # vLLM's

    expected = audio_utils.mel_filter_bank(
        num_frequency_bins=features.n_fft // 2 + 1,
        num_mel_filters=_BINS,
        min_frequency=0,
        max_frequency=_RATE / 2,
        sampling_rate=_RATE,
        norm="slaney",
        mel_scale="slaney",
    )
    # The model keeps its weights in bfloat16.
    [found] = features.filter_banks.to(torch.float32)
    np.testing.assert_allclose(found, expected.T, rtol=2**-8, atol=1e-6)


def test_what_is_compiled_for_cuda_fails_when_it_is_called() -> None:
    import torch
    import torchaudio

    if torch.version.cuda is not None:
        pytest.skip("torchaudio's functions are there")
    assert not torchaudio._extension._IS_TORCHAUDIO_EXT_AVAILABLE  # noqa: SLF001  # its own word for it
    with pytest.raises(RuntimeError, match="Requires alignment extension"):
        torchaudio.functional.forced_align(torch.zeros(1, 2, 3), torch.ones(1, 1))


def test_who_has_torch_and_not_wrapt_can_import_torch() -> None:
    """Whoever installs our package for its commands alone has no wrapt."""
    program = "import sys; sys.modules['wrapt'] = None; import torch"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)

    assert done.returncode == 0, done.stderr.decode()
