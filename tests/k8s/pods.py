"""The pods that the documents lead to, also those that an operator makes."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.k8s.rendering import Document

_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job")


class Pod(NamedTuple):
    """The template of some pods, with the labels that they will have."""

    name: str
    owner: Document
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: dict[str, Any]

    @property
    def containers(self) -> list[dict[str, Any]]:
        """All of them, also those that end and those that are put in later."""
        kinds = ("initContainers", "containers", "ephemeralContainers")
        return [container for kind in kinds for container in self.spec.get(kind, [])]

    @property
    def is_ray(self) -> bool:
        return bool(self.owner["kind"] == "RayCluster")

    @property
    def is_ray_head(self) -> bool:
        return self.labels.get("ray.io/node-type") == "head"

    @property
    def by_operator(self) -> bool:
        """Whether an operator adds probes, ports and more of its own."""
        return self.owner["kind"] in ("RayCluster", "RabbitmqCluster")

    def ports(self) -> dict[str, int]:
        return {
            port["name"]: port["containerPort"]
            for container in self.spec["containers"]
            for port in container.get("ports", [])
        }


def title(document: Document) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def pods(documents: list[Document]) -> list[Pod]:
    return [pod for document in documents for pod in _pods(document)]


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a `LabelSelector` is met; an empty one is met by everything."""
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for expression in selector.get("matchExpressions", []):
        value, values = labels.get(expression["key"]), expression.get("values", [])
        is_met = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }[expression["operator"]]
        if not is_met:
            return False
    return True


def _pods(document: Document) -> Iterator[Pod]:
    name, spec = document["metadata"]["name"], document.get("spec", {})
    match document["kind"]:
        case kind if kind in _WORKLOADS:
            yield _pod(name, document, spec["template"], {})
        case "RayCluster":
            ray = {"ray.io/cluster": name, "ray.io/is-ray-node": "yes"}
            head = {**ray, "ray.io/node-type": "head", "ray.io/group": "headgroup"}
            yield _pod("ray-head", document, spec["headGroupSpec"]["template"], head)
            for group in spec["workerGroupSpecs"]:
                labels = {**ray, "ray.io/node-type": "worker", "ray.io/group": group["groupName"]}
                yield _pod(f"ray-{group['groupName']}", document, group["template"], labels)
        case "RabbitmqCluster":
            yield _pod(name, document, _rabbitmq(spec), _rabbitmq_labels(name))
        case _:
            pass


def _pod(name: str, owner: Document, template: Document, labels: Mapping[str, str]) -> Pod:
    metadata = template.get("metadata", {})
    return Pod(
        name,
        owner,
        {**metadata.get("labels", {}), **labels},
        metadata.get("annotations", {}),
        template["spec"],
    )


def _rabbitmq_labels(name: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/component": "rabbitmq",
        "app.kubernetes.io/part-of": "rabbitmq",
    }


def _rabbitmq(spec: Mapping[str, Any]) -> Document:
    """Our part of the pods that the RabbitMQ operator makes, with what it adds that others name."""
    pod: dict[str, Any] = spec["override"]["statefulSet"]["spec"]["template"]["spec"]
    containers = [
        {
            "image": spec["image"],
            "resources": spec["resources"],
            "ports": [
                {"name": "amqp", "containerPort": 5672},
                {"name": "prometheus", "containerPort": 15692},
            ],
            **container,
        }
        for container in pod["containers"]
    ]
    inits = [
        {"image": spec["image"], "resources": spec["resources"], **container}
        for container in pod.get("initContainers", [])
    ]
    return {
        "spec": {
            **pod,
            # Since 4.1 RabbitMQ finds its peers by their names; the operator sets it anyway.
            "automountServiceAccountToken": True,
            "containers": containers,
            "initContainers": inits,
        }
    }
