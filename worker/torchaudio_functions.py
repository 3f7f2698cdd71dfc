"""Lets torchaudio be imported beside a torch without CUDA, for which it has no compiled functions.

Package indexes have torchaudio's wheels for CUDA alone. Models that hear need its spectra, which
are torch and nothing else. Its import goes on without its library where there is none, and fails
where one does not load. torch calls `spare` at the end of its own import, in each process
(`torch.backends` in pyproject.toml), so nothing may import torch up here.
"""

from importlib.util import find_spec
from typing import Any

_MODULE = "torchaudio._extension.utils"


def spare() -> None:
    """Let torchaudio, once somebody imports it, do without a library that does not load."""
    import torch

    # One that was built for CUDA has the wheels that fit. And only workers are sure to have wrapt.
    if torch.version.cuda is not None or not (find_spec("torchaudio") and find_spec("wrapt")):
        return
    import wrapt

    wrapt.register_post_import_hook(_let_fail, _MODULE)


def _let_fail(module: Any) -> None:
    load = module._load_lib  # noqa: SLF001  # no other way

    def loaded(lib: str) -> bool:
        try:
            return bool(load(lib))
        except OSError:
            # What torchaudio says of a library that is not there: callers of its functions fail.
            return False

    module._load_lib = loaded  # noqa: SLF001  # as above
