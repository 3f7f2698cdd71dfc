"""Pod Security's level `restricted`, and what we ask for above it."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.k8s.pods import Pod, pods, title
from tests.k8s.rendering import Document

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
#: The kernel's and the node's own, which nothing of ours needs.
_POD_DOORS = ("hostNetwork", "hostPID", "hostIPC")
_DOORS = ("procMount", "seLinuxOptions", "windowsOptions", "appArmorProfile", "sysctls")
_SECCOMP = ("RuntimeDefault", "Localhost")


class _Closed(NamedTuple):
    """A container with its security context, above that of its pod."""

    where: str
    pod: Mapping[str, Any]
    own: Mapping[str, Any]

    def get(self, field: str) -> Any:
        """What holds for the container: its own word comes before the pod's."""
        return self.own.get(field, self.pod.get(field))


def namespaces(documents: list[Document]) -> Iterator[str]:
    for document in documents:
        if document["kind"] == "Namespace":
            label = document["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce")
            if label != "restricted":
                yield f"{title(document)}: enforces {label}"


def restricted(documents: list[Document]) -> Iterator[str]:
    """What the API server asks of pods in a namespace of this level."""
    for pod in pods(documents):
        for door in _POD_DOORS:
            if pod.spec.get(door):
                yield f"{pod.name}: {door}"
        for volume in pod.spec.get("volumes", []):
            for kind in volume.keys() - _VOLUMES - {"name"}:
                yield f"{pod.name}: the volume {volume['name']} is a {kind}"
        for container in pod.containers:
            for port in container.get("ports", []):
                if "hostPort" in port:
                    yield f"{pod.name}/{container['name']}: a port of the node's"
    for closed in _containers(documents):
        yield from _restricted(closed)


def roots(documents: list[Document]) -> Iterator[str]:
    for where, _, own in _containers(documents):
        if own.get("readOnlyRootFilesystem") is not True:
            yield f"{where}: its root can be written"


def tokens(documents: list[Document]) -> Iterator[str]:
    """Of its account none has one, but for two kinds of pods.

    Ray's autoscaler asks the API server for pods. RabbitMQ's operator, from 2.21 on, puts one into
    its pods whatever they say, and no network policy lets those reach the API server.
    """
    for pod in pods(documents):
        may = pod.is_ray_head or pod.owner["kind"] == "RabbitmqCluster"
        if not may and pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.name}: a token of its account lies in it"


def _containers(documents: list[Document]) -> Iterator[_Closed]:
    for pod in pods(documents):
        context = pod.spec.get("securityContext", {})
        for container in pod.containers:
            where = f"{pod.name}/{container['name']}"
            yield _Closed(where, context, container.get("securityContext", {}))
        if pod.is_ray_head:
            yield _Closed("ray-head/autoscaler", context, _autoscaler(pod))


def _autoscaler(pod: Pod) -> Mapping[str, Any]:
    context: Mapping[str, Any] = pod.owner["spec"]["autoscalerOptions"].get("securityContext", {})
    return context


def _restricted(closed: _Closed) -> Iterator[str]:
    where, pod, own = closed
    if closed.get("runAsNonRoot") is not True:
        yield f"{where}: may run as root"
    if 0 in (own.get("runAsUser"), pod.get("runAsUser")):
        yield f"{where}: runs as root"
    if (closed.get("seccompProfile") or {}).get("type") not in _SECCOMP:
        yield f"{where}: no seccomp profile"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{where}: may gain privileges"
    if own.get("privileged"):
        yield f"{where}: is privileged"
    capabilities = own.get("capabilities", {})
    if capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
        yield f"{where}: keeps capabilities"
    for door in _DOORS:
        if closed.get(door) is not None:
            yield f"{where}: {door}"
