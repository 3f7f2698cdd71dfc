import re
from pathlib import Path

import pytest
import yaml

from shared.bus.topology import MAX_MESSAGE_BYTES
from shared.catalog_file import load_catalog
from tests.k8s import rules, schemas
from tests.k8s.network import flows
from tests.k8s.pods import pods, title
from tests.k8s.rendering import MANIFESTS, OVERLAYS, ROOT, Document, read, render

#: In the order of the worker groups, the most expensive machines first.
_GPU_FAMILIES = ("h100", "a100", "l4")
_RAY = ("ray-head", *(f"ray-{family}" for family in _GPU_FAMILIES), "ray-cpu")
_OURS = ("gateway", "dispatcher")
#: Both are in the namespace that may scrape.
_MONITORING = ("prometheus", "collector")
#: Addresses that are no pod's.
_PLACES = ("internet", "internet-6", "node-dns")


def test_no_key_stands_twice() -> None:
    for file in MANIFESTS.rglob("*.yaml"):
        assert read(file.read_text()), file


def test_a_key_that_stands_twice_is_found() -> None:
    with pytest.raises(yaml.YAMLError, match="replicas twice, line 3"):
        read("spec:\n  replicas: 1\n  replicas: 2\n")


def test_the_broker_refuses_messages_that_are_larger_than_a_consumer_can_hold(
    documents: list[Document],
) -> None:
    configurations = [
        text
        for document in documents
        for text in (
            document.get("data", {}).get("rabbitmq.conf"),
            document.get("spec", {}).get("rabbitmq", {}).get("additionalConfig"),
        )
        if text
    ]

    assert len(configurations) == 1
    assert f"max_message_size = {MAX_MESSAGE_BYTES}\n" in configurations[0]


def test_the_core_kinds_are_valid(documents: list[Document]) -> None:
    core = [d for d in documents if schemas.is_core(d["apiVersion"].rpartition("/")[0])]

    assert len(core) > 20
    assert [problem for document in core for problem in schemas.problems(document)] == []


def test_the_operators_kinds_are_valid(documents: list[Document]) -> None:
    foreign = [d for d in documents if not schemas.is_core(d["apiVersion"].rpartition("/")[0])]
    if not schemas.CRDS.is_dir():
        kinds = sorted({document["kind"] for document in foreign})
        pytest.skip(f"no schemas in {schemas.CRDS}: not checked are {', '.join(kinds)}")

    assert {document["kind"] for document in foreign} >= {"RayCluster", "PodMonitor"}
    assert [problem for document in foreign for problem in schemas.problems(document)] == []


def test_all_rules_are_kept(documents: list[Document]) -> None:
    assert rules.problems(documents) == []


def test_exactly_the_named_pairs_talk(documents: list[Document]) -> None:
    there = {pod.name for pod in pods(documents)}

    expected = {
        ("client", "gateway", 8000),
        ("client", "rabbitmq", 5672),
        *((namespace, "gateway", 8000) for namespace in _MONITORING),
        *((namespace, "dispatcher", 8001) for namespace in _MONITORING),
        *((namespace, "rabbitmq", 15692) for namespace in _MONITORING),
        ("dispatcher", "ray-head", 8265),
        *(("gateway", pod, 18800) for pod in there if pod.startswith("ray-")),
        ("rabbitmq", "rabbitmq", "any"),
        *(("ray-head", place, 6443) for place in _PLACES),
        # Lane jobs are on the head; an engine reaches neither Redis nor RabbitMQ.
        *((room, "redis", 6379) for room in (*_OURS, "ray-head")),
        *((room, "rabbitmq", 5672) for room in _OURS),
        *((room, p, port) for room in (*_OURS, *_RAY) for p in _PLACES for port in (443, 9000)),
        *((one, other, "any") for one in _RAY for other in _RAY),
        *((namespace, node, 8080) for node in _RAY for namespace in _MONITORING),
        # Lane jobs are on the head, and engines trace nothing.
        *((room, "collector", 4318) for room in (*_OURS, "ray-head")),
        *((pod, names, 53) for pod in there for names in ("dns", "node-dns")),
    }
    outside = {"client", *_MONITORING, "dns", *_PLACES}
    assert flows(documents) == {flow for flow in expected if {*flow[:2]} <= there | outside}


def test_the_overlays_have_what_they_are_for(overlays: dict[str, list[Document]]) -> None:
    groups = {
        name: [group["groupName"] for group in _ray(documents)["spec"]["workerGroupSpecs"]]
        for name, documents in overlays.items()
    }

    assert groups == {"dev": ["cpu"], "production": [*_GPU_FAMILIES, "cpu"]}
    models = {
        name: document["spec"]["accessModes"]
        for name, documents in overlays.items()
        for document in documents
        if title(document) == "PersistentVolumeClaim/models"
    }
    # All pods mount it, and `dev` is for one node.
    assert models == {"dev": ["ReadWriteOnce"], "production": ["ReadWriteMany"]}
    assert "StatefulSet/rabbitmq" in map(title, overlays["dev"])
    assert "RabbitmqCluster/rabbitmq" in map(title, overlays["production"])
    for pod in pods(overlays["production"]):
        if pod.name.removeprefix("ray-") in _GPU_FAMILIES:
            assert "nvidia.com/gpu.product" in pod.spec["nodeSelector"]
            assert pod.spec["tolerations"][0]["key"] == "nvidia.com/gpu"


def test_every_pool_of_the_catalog_is_a_worker_group(
    overlays: dict[str, list[Document]], tmp_path: Path
) -> None:
    [found] = [d for d in overlays["production"] if title(d) == "ConfigMap/ray-catalog"]
    (tmp_path / "catalog.yaml").write_text(found["data"]["catalog.yaml"])
    catalog = load_catalog(tmp_path / "catalog.yaml")
    groups = {g["groupName"]: g for g in _ray(overlays["production"])["spec"]["workerGroupSpecs"]}

    assert found["data"]["catalog.yaml"] == (MANIFESTS / "base/catalog.yaml").read_text()
    assert catalog.pools.keys() == groups.keys()
    for name, pool in catalog.pools.items():
        accelerator = groups[name]["labels"].get("ray.io/accelerator-type")
        assert pool.accelerator_type == accelerator
        assert pool.label_selector.items() <= groups[name]["labels"].items()


def test_an_overlay_names_bucket_and_region_as_documented(tmp_path: Path) -> None:
    page = (ROOT / "docs/operations.md").read_text()
    [shown] = re.findall(r"^```yaml\n(configMapGenerator:.*?)```$", page, re.MULTILINE | re.DOTALL)
    own = (MANIFESTS / "overlays/production/kustomization.yaml").read_text() + shown

    rendered = render(
        "production", tmp_path, changes={"overlays/production/kustomization.yaml": own}
    )

    [settings] = [
        document["data"]
        for document in rendered
        if document["kind"] == "ConfigMap" and document["metadata"]["name"] == "settings"
    ]
    assert settings["BATCHYARD_S3_REGION"] == "eu-central-1"
    assert settings["BATCHYARD_S3_BUCKET"] == "acme-batchyard"
    assert settings["BATCHYARD_CATALOG"]


def test_a_changed_catalog_rolls_who_reads_it_at_the_start_and_no_pod_of_rays(
    documents: list[Document], tmp_path: Path
) -> None:
    changed = render("production", tmp_path, changes={"base/catalog.yaml": "pools: {}\n"})

    before, after = (
        {
            pod.name: volume["configMap"]["name"]
            for pod in pods(rendered)
            for volume in pod.spec["volumes"]
            if volume["name"] == "catalog"
        }
        for rendered in (documents, changed)
    )
    rolled = {name for name in before if before[name] != after[name]}
    assert rolled == {"gateway", "dispatcher"}
    assert len({before[name] for name in rolled}) == 1
    assert {before[name] for name in before.keys() - rolled} == {"ray-catalog"}


def test_an_engine_leaves_room_for_what_feeds_it(documents: list[Document]) -> None:
    catalog = load_catalog(MANIFESTS / "base/catalog.yaml")

    for group in _ray(documents)["spec"]["workerGroupSpecs"]:
        # An engine that asks for no cores still has one.
        asked = catalog.pools[group["groupName"]].resources.get("CPU", 1)
        assert asked + 1 <= float(group["resources"]["CPU"])


def test_ray_is_the_version_that_the_images_have(documents: list[Document]) -> None:
    pinned = re.search(r'"ray\[data,llm\]==([\d.]+)"', (ROOT / "pyproject.toml").read_text())

    assert pinned is not None
    assert _ray(documents)["spec"]["rayVersion"] == pinned[1]


def test_one_version_of_each_server_is_everywhere(overlays: dict[str, list[Document]]) -> None:
    text = (ROOT / "compose.yaml").read_text()

    for server in ("rabbitmq", "redis"):
        [in_compose] = re.findall(rf"\$\{{\w+_IMAGE:-({server}:[\w.]+)\}}", text)
        for name, documents in overlays.items():
            [pod] = [pod for pod in pods(documents) if pod.name == server]
            assert {container["image"] for container in pod.containers} == {in_compose}, name


def test_cheap_machines_are_started_first(overlays: dict[str, list[Document]]) -> None:
    groups = _ray(overlays["production"])["spec"]["workerGroupSpecs"]

    in_order = sorted(groups, key=lambda group: -int(group["priority"]))
    assert [group["groupName"] for group in in_order] == ["cpu", *reversed(_GPU_FAMILIES)]


def test_every_overlay_is_rendered() -> None:
    assert {path.name for path in (MANIFESTS / "overlays").iterdir()} == set(OVERLAYS)


def _ray(documents: list[Document]) -> Document:
    [cluster] = [document for document in documents if document["kind"] == "RayCluster"]
    return cluster
