"""Two names that vLLM 0.29 imports from transformers, which has others for them since 5.17.

Pixtral's vision tower is part of LLaVA, Mistral 3 and others, so eleven architectures need them.
vLLM calls `register` in each of its processes (`vllm.general_plugins` in pyproject.toml).
"""

from collections.abc import Iterable
from typing import Any

import wrapt

_MODULE = "transformers.models.pixtral.modeling_pixtral"


def register() -> None:
    """Let transformers' module have them once somebody imports it. May be called twice."""
    wrapt.register_post_import_hook(_add_names, _MODULE)


def _add_names(module: Any) -> None:
    if hasattr(module, "PixtralRotaryEmbedding"):
        return
    import torch
    from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding

    class PixtralRotaryEmbedding(PixtralVisionRotaryEmbedding):  # type: ignore[misc]  # loaded lazily
        """Takes the number of a patch in the grid; the one that it is made of, row and column."""

        def __init__(self, config: Any, device: Any = None) -> None:
            super().__init__(config)
            self._width = config.image_size // config.patch_size
            self.to(device)

        def forward(self, x: Any, position_ids: Any) -> Any:
            places = (position_ids // self._width, position_ids % self._width)
            return super().forward(x, torch.stack(places, dim=-1))

    def position_ids_in_meshgrid(patch_embeds_list: Iterable[Any], max_width: int) -> Any:
        """The numbers of the patches of images, each of which is `[…, rows, columns]`."""
        shapes = (one.shape[-2:] for one in patch_embeds_list)
        return torch.cat([numbers(rows, columns, max_width) for rows, columns in shapes])

    def numbers(rows: int, columns: int, width: int) -> Any:
        return (torch.arange(rows)[:, None] * width + torch.arange(columns)).flatten()

    module.PixtralRotaryEmbedding = PixtralRotaryEmbedding
    module.position_ids_in_meshgrid = position_ids_in_meshgrid
