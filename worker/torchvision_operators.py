"""Lets torchvision be imported beside a torch without CUDA, for which it has no compiled operators.

Package indexes have torchvision's wheels for CUDA alone. Image processors need its transforms,
which are torch and nothing else; but its import registers shapes for two compiled operators, and
fails where these are not defined. torch calls `define` at the end of its own import, in each
process (`torch.backends` in pyproject.toml), so nothing may import torch up here.
"""

from importlib.util import find_spec
from pathlib import Path

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
#: The operators whose shapes torchvision registers without looking whether they are there.
_OPERATORS = ("torchvision::nms", "torchvision::qnms")


def define() -> None:
    """Declare torchvision's operators if its compiled ones do not load; whoever calls one fails."""
    import torch

    # One that was built for CUDA has the wheels that fit.
    if torch.version.cuda is not None or (library := _library()) is None:
        return
    try:
        torch.ops.load_library(library)
    except OSError:
        for operator in _OPERATORS:
            torch.library.define(operator, _SCHEMA)


def _library() -> Path | None:
    """Where torchvision's compiled operators are; None where it is not installed."""
    found = find_spec("torchvision")
    places = (found and found.submodule_search_locations) or []
    files = (file for place in places for file in Path(place).glob("_C*.so"))
    return next(files, None)
