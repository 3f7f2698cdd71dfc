"""Where the files are that say what a model does: in its folder, or from the models' hub.

Only the check asks the hub, which an operator starts. Gateways and dispatchers never do: they would
disagree where one of them reaches it and another one does not.
"""

import contextlib
from pathlib import Path

from shared.catalog import Model

#: Whether the model is one of sentence-transformers.
_MODULES = "modules.json"
_CONFIG = "config.json"
#: How long the hub may take to begin each answer.
_SECONDS = 5


def model_folder(model: Model) -> Path | None:
    """A folder with the model's `config.json`; None if it is neither here nor at the hub."""
    folder = Path(model.source)
    if folder.is_dir():
        return folder
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    def downloaded(name: str) -> Path:
        found = hf_hub_download(model.source, name, revision=model.revision, etag_timeout=_SECONDS)
        return Path(found)

    try:
        config = downloaded(_CONFIG)
    # Also what it says without a connection or a right, and of a name that is none of its own.
    except (OSError, ValueError, EntryNotFoundError):
        return None
    with contextlib.suppress(OSError, EntryNotFoundError):
        downloaded(_MODULES)
    return config.parent
