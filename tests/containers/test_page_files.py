"""The page's templates, styles and scripts are in what is installed, and are what they claim."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from tests.k8s.rendering import ROOT
from tests.wheel import built_wheel

_PAGE = ROOT / "gateway/ui"
#: What others have written, as they have published it: htmx 4.0.1, under the 0BSD licence.
_VENDORED = {
    "htmx-4.0.1.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "hx-sse-4.0.1.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
    "htmx-LICENSE.txt": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
}


@pytest.mark.parametrize("name", _VENDORED)
def test_a_vendored_file_is_as_it_was_published(name: str) -> None:
    assert hashlib.sha256((_PAGE / "static" / name).read_bytes()).hexdigest() == _VENDORED[name]


def test_a_wheel_has_every_file_of_the_page(tmp_path: Path) -> None:
    # As the Dockerfile of the gateway copies them.
    wheel = built_wheel(tmp_path, ("gateway", "shared", "cli"))

    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    files = [path for path in _PAGE.rglob("*") if path.is_file() and "__pycache__" not in str(path)]
    assert len(files) > 20
    assert {str(path.relative_to(ROOT)) for path in files} <= names
