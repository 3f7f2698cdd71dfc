"""torchvision beside a torch without CUDA: transforms work, and compiled operators say no."""

import pytest

pytest.importorskip("torchvision", reason="needs the worker's dependencies")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_pictures_are_scaled_as_pillow_scales_them() -> None:
    import torch
    from PIL import Image
    from torchvision.transforms.v2 import functional

    picture = Image.effect_noise((64, 48), 60).convert("RGB")

    found = functional.resize(functional.pil_to_tensor(picture), [24, 32], antialias=True)

    expected = functional.pil_to_tensor(picture.resize((32, 24), Image.Resampling.BILINEAR))
    # One is rounded in another place.
    assert torch.max(torch.abs(found.int() - expected.int())) <= 1


def test_what_is_compiled_for_cuda_is_declared_and_fails_when_it_is_called() -> None:
    import torch
    import torchvision

    if torch.version.cuda is not None:
        pytest.skip("torchvision's operators are there")
    assert not torchvision.extension._has_ops()  # noqa: SLF001  # its own word for it
    with pytest.raises(NotImplementedError, match="torchvision::nms"):
        torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
