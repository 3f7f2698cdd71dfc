"""The overlay that docs/operations.md has its reader write, as it stands there."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.k8s import rules, schemas
from tests.k8s.network import flows
from tests.k8s.pods import pods, selects, title
from tests.k8s.rendering import ROOT, Document, is_old, render

_FILES = {
    f"overlays/mine/{name}": text
    for name, text in re.findall(
        r"^```yaml\n# k8s/overlays/mine/(\S+)\n(.*?)^```",
        (ROOT / "docs/operations.md").read_text(),
        flags=re.MULTILINE | re.DOTALL,
    )
}
_KUSTOMIZATION = "overlays/mine/kustomization.yaml"
_CATALOG = "pools: {cpu: {resources: {CPU: 2}}}\nmodels: {some/model: {pools: [cpu]}}\n"


@pytest.fixture
def rendered(overlays: dict[str, list[Document]], tmp_path: Path) -> list[Document]:
    """It with a catalog of its own. `overlays` skips where there is no kubectl."""
    return _rendered(_FILES, tmp_path)


def test_both_maps_hold_the_readers_catalog(rendered: list[Document]) -> None:
    found = {d["metadata"]["name"]: d["data"] for d in rendered if "catalog" in title(d)}

    assert {name.rpartition("catalog")[0] for name in found} == {"", "ray-"}
    assert list(found.values()) == [{"catalog.yaml": _CATALOG}] * 2


def test_a_catalog_that_is_replaced_once_is_found(
    overlays: dict[str, list[Document]], tmp_path: Path
) -> None:
    kustomization = yaml.safe_load(_FILES[_KUSTOMIZATION])
    for forgotten, generator in enumerate(kustomization["configMapGenerator"]):
        one = {**kustomization, "configMapGenerator": [generator]}
        files = {**_FILES, _KUSTOMIZATION: yaml.safe_dump(one, sort_keys=False)}

        found = rules.problems(_rendered(files, tmp_path / str(forgotten)))

        assert [text for text in found if "hold different catalogs" in text], generator


def test_all_rules_are_kept(rendered: list[Document]) -> None:
    assert rules.problems(rendered) == []
    core = [d for d in rendered if schemas.is_core(d["apiVersion"].rpartition("/")[0])]
    assert [problem for document in core for problem in schemas.problems(document)] == []


def test_all_our_images_come_from_the_readers_registry_with_its_login(
    rendered: list[Document],
) -> None:
    ours = [pod for pod in pods(rendered) if pod.is_ray or pod.name in ("gateway", "dispatcher")]

    for pod in ours:
        for container in pod.containers:
            assert container["image"].startswith("registry.example.com/batchyard/"), pod.name
        assert pod.spec["imagePullSecrets"] == [{"name": "registry"}], pod.name
    assert len(ours) == 7


def test_prometheus_reads_every_monitor_and_rule(rendered: list[Document]) -> None:
    watched = [d for d in rendered if d["apiVersion"].startswith("monitoring.coreos.com")]

    assert len(watched) == 5
    assert {d["metadata"].get("labels", {}).get("release") for d in watched} == {"monitoring"}


def test_its_network_only_adds_to_ours(
    rendered: list[Document], overlays: dict[str, list[Document]]
) -> None:
    [cilium] = [d["spec"] for d in rendered if d["kind"] == "CiliumNetworkPolicy"]

    assert flows(rendered) >= flows(overlays["production"])
    met = [pod.name for pod in pods(rendered) if selects(cilium["endpointSelector"], pod.labels)]
    assert met == ["ray-head"]


def _rendered(files: Mapping[str, str], scratch: Path) -> list[Document]:
    if is_old():
        pytest.skip("NOT TESTED: kubectl is older than 1.21, and patches nothing by its kind.")
    scratch.mkdir(exist_ok=True)
    return render("mine", scratch, changes={**files, "overlays/mine/catalog.yaml": _CATALOG})
