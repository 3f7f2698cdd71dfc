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
    # One that this user may not look into is none; engines may be another's.
    with contextlib.suppress(OSError):
        if folder.is_dir():
            return folder
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    def is_at_hub() -> bool:
        try:
            url = hf_hub_url(model.source, _CONFIG, revision=model.revision)
            get_hf_file_metadata(url, timeout=_SECONDS)
        except Exception:  # noqa: BLE001  # its client's errors are httpx's or httpx2's
            return False
        return True

    # A download would try for half a minute where there is no connection.
    only_here = not is_at_hub()

    def downloaded(name: str) -> Path:
        found = hf_hub_download(
            model.source,
            name,
            revision=model.revision,
            etag_timeout=_SECONDS,
            local_files_only=only_here,
        )
        return Path(found)

    try:
        config = downloaded(_CONFIG)
    # Also what it says without a connection or a right, and of a name that is none of its own.
    except (OSError, ValueError, EntryNotFoundError):
        return None
    with contextlib.suppress(OSError, EntryNotFoundError):
        downloaded(_MODULES)
    return config.parent
