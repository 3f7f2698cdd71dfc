"""`kubectl kustomize` of an overlay, as documents."""

import json
import os
import shutil
import subprocess
from collections.abc import Hashable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "k8s"
#: Folders with schemas that are not ours to keep.
SCHEMAS = Path(os.environ.get("TEST_SCHEMAS", ROOT.parent / "shared"))
OVERLAYS = ("dev", "production")

Document = dict[str, Any]


class _Loader(yaml.CSafeLoader):
    """YAML allows a key twice and silently drops the first one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT002  # PyYAML's signature
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} twice, line {line}"
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read(text: str) -> list[Document]:
    """All documents of a YAML text. Raises yaml.YAMLError, also where a key stands twice."""
    return [document for document in yaml.load_all(text, _Loader) if document]  # a safe loader


def render(
    overlay: str, scratch: Path, *, changes: Mapping[str, str] = MappingProxyType({})
) -> list[Document]:
    """The documents that `kubectl apply -k` would send. `scratch` is an empty folder.

    `changes` are files with another text than ours, or of an overlay that is not ours.
    """
    # It runs the kustomize of any kubectl; Debian 12 has one that knows older words only.
    manifests = scratch / "k8s"
    shutil.copytree(MANIFESTS, manifests)
    for name, text in changes.items():
        file = manifests / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    done = _kustomize(manifests / "overlays" / overlay)
    if done.returncode:
        for file in manifests.rglob("kustomization.yaml"):
            file.write_text(yaml.safe_dump(_in_older_words(file), sort_keys=False))
        done = _kustomize(manifests / "overlays" / overlay)
    if done.returncode:
        raise AssertionError(f"kubectl kustomize {overlay}: {done.stderr}")
    return read(done.stdout)


def is_old() -> bool:
    """Whether kubectl has the kustomize of before 2021, which patches nothing by its kind alone."""
    version_call = subprocess.run(
        ["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True, check=True
    )
    version = json.loads(version_call.stdout)["clientVersion"]
    return (int(version["major"]), int(version["minor"].rstrip("+"))) < (1, 21)


def _kustomize(folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["kubectl", "kustomize", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )


def _in_older_words(file: Path) -> Document:
    [kustomization] = read(file.read_text())
    _write_out_generated(kustomization, file.parent)
    resources = kustomization.pop("resources", [])
    kustomization["resources"] = [name for name in resources if name.endswith(".yaml")]
    kustomization["bases"] = [name for name in resources if not name.endswith(".yaml")]
    patches = kustomization.pop("patches", [])
    kustomization["patchesStrategicMerge"] = [
        patch["path"] for patch in patches if "target" not in patch
    ]
    kustomization["patchesJson6902"] = [patch for patch in patches if "target" in patch]
    return kustomization


def _write_out_generated(kustomization: Document, folder: Path) -> None:
    """Replace generators with options of their own, which older ones have only for all together."""
    kept = []
    for generator in kustomization.pop("configMapGenerator", []):
        if "options" not in generator:
            kept.append(generator)
            continue
        assert generator["options"] == {"disableNameSuffixHash": True}
        data = dict(text.split("=", 1) for text in generator.get("literals", []))
        data |= {name: (folder / name).read_text() for name in generator.get("files", [])}
        name = f"generated-{generator['name']}.yaml"
        written = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": generator["name"]},
            "data": data,
        }
        (folder / name).write_text(yaml.safe_dump(written))
        kustomization["resources"].append(name)
    kustomization["configMapGenerator"] = kept
