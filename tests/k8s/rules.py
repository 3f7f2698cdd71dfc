"""What schemas do not check: names that lead nowhere, open ports, and the rules of KubeRay."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.k8s import security
from tests.k8s.pods import Pod, pods, selects, title
from tests.k8s.rendering import Document

NAMESPACE = "batchyard"
_CLUSTER_WIDE = ("Namespace",)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_MAX_NAME_CHARACTERS, _MAX_RAY_NAME_CHARACTERS, _MAX_PORT_NAME_CHARACTERS = 63, 53, 15
_SECRET_WORDS = re.compile(r"TOKEN|PASSWORD|SECRET|_KEY$|AMQP_URL|REDIS_URL")
#: Of the limit, in percent: a rewrite of the log holds what changes meanwhile twice.
_MAX_REDIS_MEMORY_PERCENT = 65
_REDIS_BOUND = re.compile(r'--maxmemory "\$\(\((\w+) / 100 \* (\d+)\)\)"')
#: The first with /api/health/checks/reached-target-cluster-size, which the operator asks from 2.22.
_OLDEST_RABBITMQ = (4, 2, 4)
#: Alpha in KubeRay 1.7.
_ALPHA = {"networkPolicy", "tlsOptions", "historyServerOptions"}
_SUFFIXES = {"m": 1e-3, "": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

#: Not among the manifests, because they hold secrets: `python -m cli.credentials` generates them.
SECRETS: Mapping[str, frozenset[str]] = {
    "batchyard-amqp": frozenset({"url", "definitions.json"}),
    "batchyard-redis": frozenset({"url", "password", "lane-password", "ray-password"}),
    "batchyard-lane": frozenset(
        {
            "BATCHYARD_REDIS_URL",
            "BATCHYARD_S3_ACCESS_KEY",
            "BATCHYARD_S3_SECRET_KEY",
            "BATCHYARD_CACHE_SECRET",
        }
    ),
    "batchyard-s3": frozenset({"endpoint", "access-key", "secret-key"}),
    "batchyard-ray": frozenset({"auth_token"}),
    "batchyard-metrics": frozenset({"token"}),
    "batchyard-models": frozenset({"token"}),
}

Rule = Callable[[list[Document]], Iterator[str]]


def problems(documents: list[Document]) -> list[str]:
    """Everything that is wrong, by all rules."""
    return [problem for rule in RULES for problem in rule(documents)]


def names(documents: list[Document]) -> Iterator[str]:
    for name, number in Counter(map(title, documents)).items():
        if number > 1:
            yield f"{name}: there are {number}"
    for document in documents:
        name = document["metadata"]["name"]
        max_characters = (
            _MAX_RAY_NAME_CHARACTERS if document["kind"] == "RayCluster" else _MAX_NAME_CHARACTERS
        )
        if not _NAME.fullmatch(name) or len(name) > max_characters:
            yield f"{title(document)}: not a name that it may have"
        namespace = document["metadata"].get("namespace")
        if document["kind"] not in _CLUSTER_WIDE and namespace != NAMESPACE:
            yield f"{title(document)}: in the namespace {namespace}"


def selectors(documents: list[Document]) -> Iterator[str]:
    """Every selector meets something, and a workload's own meets its pods."""
    all_pods = pods(documents)
    for document in documents:
        spec, found = document.get("spec", {}), all_pods
        match document["kind"]:
            case "Deployment" | "StatefulSet":
                selector = spec["selector"]
                found = [pod for pod in all_pods if pod.owner is document]
            case "Service":
                selector = {"matchLabels": spec["selector"]}
            case "PodDisruptionBudget" | "PodMonitor":
                selector = spec["selector"]
            case "NetworkPolicy":
                selector = spec["podSelector"]
                yield from _peers(document, all_pods)
            case "ServiceMonitor":
                yield from _monitored(document, documents)
                continue
            case "HorizontalPodAutoscaler":
                target = spec["scaleTargetRef"]
                if f"{target['kind']}/{target['name']}" not in map(title, documents):
                    yield f"{title(document)}: there is no {target['kind']}/{target['name']}"
                continue
            case _:
                continue
        if not any(selects(selector, pod.labels) for pod in found):
            yield f"{title(document)}: its selector meets no pod"


def ports(documents: list[Document]) -> Iterator[str]:
    """Names of ports are short and stand once, and probes ask at one that is there."""
    for pod in pods(documents):
        named = [p["name"] for c in pod.spec["containers"] for p in c.get("ports", [])]
        for name in named:
            if not _PORT_NAME.fullmatch(name) or len(name) > _MAX_PORT_NAME_CHARACTERS:
                yield f"{pod.name}: {name} is no name of a port"
        if len(set(named)) < len(named):
            yield f"{pod.name}: a port's name stands twice"
        for container in pod.spec["containers"]:
            yield from _probe_ports(pod, container)


def named_ports(documents: list[Document]) -> Iterator[str]:
    """The pods behind a service or monitor have the ports that it names."""
    all_pods = pods(documents)
    for document in documents:
        spec = document.get("spec", {})
        match document["kind"]:
            case "Service":
                found = [
                    p for p in all_pods if selects({"matchLabels": spec["selector"]}, p.labels)
                ]
                wanted = [port["targetPort"] for port in spec["ports"]]
            case "PodMonitor":
                found = [p for p in all_pods if selects(spec["selector"], p.labels)]
                wanted = [endpoint["port"] for endpoint in spec["podMetricsEndpoints"]]
            case _:
                continue
        for pod in found:
            for port in wanted:
                if port not in pod.ports():
                    yield f"{title(document)}: {pod.name} has no port {port}"


def references(documents: list[Document]) -> Iterator[str]:
    """Maps, claims, accounts and volumes that are named exist."""
    there = set(map(title, documents))
    for pod in pods(documents):
        account = pod.spec.get("serviceAccountName")
        if account and f"ServiceAccount/{account}" not in there:
            yield f"{pod.name}: there is no account {account}"
        for volume in pod.spec.get("volumes", []):
            yield from _volume(pod, volume, documents)
        own = pod.owner.get("spec", {}).get("volumeClaimTemplates", [])
        volumes = {volume["name"] for volume in pod.spec.get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in own}
        for container in pod.containers:
            where = f"{pod.name}/{container['name']}"
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    yield f"{where}: there is no volume {mount['name']}"
            for source in container.get("envFrom", []):
                name = source.get("configMapRef", source.get("secretRef"))["name"]
                if "configMapRef" in source and f"ConfigMap/{name}" not in there:
                    yield f"{where}: there is no map {name}"
                if "secretRef" in source and name not in SECRETS:
                    yield f"{where}: no secret {name} is listed"


def keys(documents: list[Document]) -> Iterator[str]:
    """Keys of secrets and maps that are named exist, and no variable is set twice."""
    maps = {d["metadata"]["name"]: d for d in documents if d["kind"] == "ConfigMap"}
    for document in documents:
        for kind, reference in _key_references(document):
            yield from _key(document, kind, reference, maps)
    for pod in pods(documents):
        for container in pod.containers:
            env = [variable["name"] for variable in container.get("env", [])]
            for name in sorted({name for name in env if env.count(name) > 1}):
                yield f"{pod.name}/{container['name']}: {name} is set twice"


def secrets(documents: list[Document]) -> Iterator[str]:
    """Secrets stand in Secrets, and those are not among the manifests."""
    for document in documents:
        if document["kind"] == "Secret":
            yield f"{title(document)}: a secret in the open"
        if document["kind"] == "ConfigMap":
            for name in document.get("data", {}):
                if _SECRET_WORDS.search(name):
                    yield f"{title(document)}: {name} in the open"
    for pod in pods(documents):
        for container in pod.containers:
            for variable in container.get("env", []):
                if "value" in variable and _SECRET_WORDS.search(variable["name"]):
                    yield f"{pod.name}: {variable['name']} in the open"


def resources(documents: list[Document]) -> Iterator[str]:
    for pod in pods(documents):
        for container in pod.containers:
            yield from _resources(f"{pod.name}/{container['name']}", container.get("resources", {}))
    for document in documents:
        if document["kind"] == "RayCluster":
            asked = document["spec"]["autoscalerOptions"].get("resources", {})
            yield from _resources("ray-head/autoscaler", asked)


def images(documents: list[Document]) -> Iterator[str]:
    for pod in pods(documents):
        for container in pod.containers:
            tag = container["image"].rpartition("/")[2].partition(":")[2].partition("@")[0]
            if not re.search(r"\d", tag):
                yield f"{pod.name}/{container['name']}: {container['image']} is not pinned"


def catalogs(documents: list[Document]) -> Iterator[str]:
    """Two maps hold the one catalog, and an overlay may have replaced it in one of them only."""
    texts = {
        document["metadata"]["name"]: document["data"]["catalog.yaml"]
        for document in documents
        if document["kind"] == "ConfigMap" and "catalog.yaml" in document.get("data", {})
    }
    if len(set(texts.values())) > 1:
        yield f"{' and '.join(sorted(texts))} hold different catalogs"


def probes(documents: list[Document]) -> Iterator[str]:
    """Three separate ones each, about the container itself; operators add those of their pods."""
    for pod in pods(documents):
        if not pod.by_operator:
            for container in pod.spec["containers"]:
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    where = f"{pod.name}/{container['name']}"
                    if probe not in container:
                        yield f"{where}: no {probe}"
                    elif container[probe].get("httpGet", {}).get("path") == "/readyz":
                        yield f"{where}: its {probe} fails with a service that all replicas lack"


def redis_bounds(documents: list[Document]) -> Iterator[str]:
    """Redis refuses writes before its container is killed for memory."""
    for pod in pods(documents):
        for container in pod.containers:
            script = " ".join(container.get("command", []))
            if "redis-server" not in script:
                continue
            where, env = f"{pod.name}/{container['name']}", container.get("env", [])
            found = _REDIS_BOUND.search(script)
            limits = {
                variable["name"]
                for variable in env
                if variable.get("valueFrom", {}).get("resourceFieldRef", {}).get("resource")
                == "limits.memory"
            }
            if found is None or found[1] not in limits:
                yield f"{where}: Redis has no bound by its container's memory"
            elif int(found[2]) > _MAX_REDIS_MEMORY_PERCENT:
                yield f"{where}: no room for rewriting the log beside {found[2]} percent"


def rabbitmq(documents: list[Document]) -> Iterator[str]:
    for document in documents:
        if document["kind"] == "RabbitmqCluster":
            image = document["spec"]["image"]
            version = tuple(map(int, re.findall(r"\d+", image.rpartition(":")[2])))
            if version < _OLDEST_RABBITMQ:
                yield f"{title(document)}: {image} never answers the operator's startup probe"


def budgets(documents: list[Document]) -> Iterator[str]:
    """Whatever serves has a budget, and an unwell pod never holds up a node."""
    found = [d["spec"] for d in documents if d["kind"] == "PodDisruptionBudget"]
    for budget in found:
        if budget.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"a budget holds unwell pods: {budget['selector']}"
    for pod in pods(documents):
        if not pod.is_ray and not any(selects(b["selector"], pod.labels) for b in found):
            yield f"{pod.name}: no budget"


def autoscaling(documents: list[Document]) -> Iterator[str]:
    """What an autoscaler decides stands nowhere else: an apply would undo it."""
    for document in documents:
        if document["kind"] == "HorizontalPodAutoscaler":
            target = document["spec"]["scaleTargetRef"]
            for other in documents:
                if title(other) == f"{target['kind']}/{target['name']}" and (
                    "replicas" in other["spec"]
                ):
                    yield f"{title(other)}: replicas, and an autoscaler"
            if document["spec"]["minReplicas"] > document["spec"]["maxReplicas"]:
                yield f"{title(document)}: at least more than at most"


def kuberay(documents: list[Document]) -> Iterator[str]:
    for document in documents:
        if document["kind"] == "RayCluster":
            yield from _ray_cluster(document["spec"])
            yield from _ray_gates(document["spec"])
            for pod in pods([document]):
                yield from _ray_pod(pod)


def _ray_cluster(spec: dict[str, Any]) -> Iterator[str]:
    if spec.get("authOptions", {}).get("mode") != "token":
        yield "RayCluster: no token"
    elif "secretName" not in spec["authOptions"]:
        yield "RayCluster: a token that the dispatcher cannot know"
    if "gcsFaultToleranceOptions" not in spec:
        yield "RayCluster: forgets all with its head"
    if not spec.get("enableInTreeAutoscaling") or spec["autoscalerOptions"].get("version") != "v2":
        yield "RayCluster: not scaled by the second autoscaler"
    if "num-cpus" not in spec["headGroupSpec"]["rayStartParams"] and (
        spec["headGroupSpec"].get("resources", {}).get("CPU") != "0"
    ):
        yield "RayCluster: the head takes work"
    groups = [group["groupName"] for group in spec["workerGroupSpecs"]]
    if len(set(groups)) < len(groups):
        yield "RayCluster: two groups of one name"
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        if doubly := {"num-cpus", "num-gpus", "memory", "resources", "labels"} & set(
            group["rayStartParams"]
        ):
            yield f"RayCluster: {sorted(doubly)} belong into `resources` and `labels`"
    for group in spec["workerGroupSpecs"]:
        yield from _ray_group(group)


def _ray_gates(spec: dict[str, Any]) -> Iterator[str]:
    if spec.get("gcsFaultToleranceOptions", {}).get("backend", "redis") != "redis":
        yield "RayCluster: a store that needs a gate that the operator has closed"
    for field in sorted(_ALPHA & spec.keys()):
        yield f"RayCluster: {field} needs a gate that the operator has closed"


def _ray_group(group: dict[str, Any]) -> Iterator[str]:
    name, has = f"group {group['groupName']}", group.get("resources", {})
    if group.get("minReplicas") != 0 or group.get("replicas", 0) != 0:
        yield f"{name}: begins with more than nothing"
    if group["maxReplicas"] < 1:
        yield f"{name}: never has a pod"
    for field in ("idleTimeoutSeconds", "priority"):
        if field not in group:
            yield f"{name}: no {field}"
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    if has.get("CPU") != str(limits["cpu"]):
        yield f"{name}: Ray counts {has.get('CPU')} cores, and its pod has {limits['cpu']}"
    if has.get("GPU") != limits.get("nvidia.com/gpu"):
        yield f"{name}: Ray counts {has.get('GPU')} GPUs, its pod {limits.get('nvidia.com/gpu')}"
    labels = group.get("labels", {})
    if labels.get("pool") != group["groupName"]:
        yield f"{name}: its label names the pool {labels.get('pool')}"
    kinds = [key.partition(":")[2] for key in has if key.startswith("accelerator_type:")]
    label = labels.get("ray.io/accelerator-type")
    if ("GPU" in has or label) and kinds != [label]:
        yield f"{name}: {kinds} as a resource and {label} as a label"


def _ray_pod(pod: Pod) -> Iterator[str]:
    if pod.spec.get("restartPolicy", "Never") != "Never":
        yield f"{pod.name}: restarted, which the second autoscaler cannot take"
    if pod.annotations.get("cluster-autoscaler.kubernetes.io/safe-to-evict") != "false":
        yield f"{pod.name}: may be evicted"
    if pod.is_ray_head and pod.spec.get("automountServiceAccountToken") is False:
        yield f"{pod.name}: the autoscaler needs the token of its account"
    for variable in pod.spec["containers"][0].get("env", []):
        if variable["name"] in ("RAY_enable_autoscaler_v2", "RAY_AUTH_TOKEN", "RAY_AUTH_MODE"):
            yield f"{pod.name}: {variable['name']} is the operator's to set"


def _peers(policy: Document, all_pods: list[Pod]) -> Iterator[str]:
    """Those named inside the namespace exist, and have the port that is opened."""
    spec = policy["spec"]
    targets = [pod for pod in all_pods if selects(spec["podSelector"], pod.labels)]
    for direction, side in (("ingress", "from"), ("egress", "to")):
        if direction in spec and direction.capitalize() not in spec["policyTypes"]:
            yield f"{title(policy)}: {direction} is not among its types"
        for rule in spec.get(direction, []):
            for peer in rule.get(side, []):
                if "podSelector" not in peer or "namespaceSelector" in peer:
                    continue
                met = [pod for pod in all_pods if selects(peer["podSelector"], pod.labels)]
                if not met:
                    yield f"{title(policy)}: {side} meets no pod: {peer['podSelector']}"
                if direction == "egress":
                    yield from _opened(policy, rule, met)
            if direction == "ingress":
                yield from _opened(policy, rule, targets)


def _opened(policy: Document, rule: dict[str, Any], to: list[Pod]) -> Iterator[str]:
    for port in rule.get("ports", []):
        if isinstance(port["port"], str):
            for pod in to:
                if port["port"] not in pod.ports():
                    yield f"{title(policy)}: {pod.name} has no port {port['port']}"


def _monitored(monitor: Document, documents: list[Document]) -> Iterator[str]:
    services = [
        d
        for d in documents
        if d["kind"] == "Service"
        and selects(monitor["spec"]["selector"], d["metadata"].get("labels", {}))
    ]
    if not services:
        yield f"{title(monitor)}: its selector meets no service"
    for service in services:
        named = {port.get("name") for port in service["spec"]["ports"]}
        for endpoint in monitor["spec"]["endpoints"]:
            if endpoint["port"] not in named:
                yield f"{title(monitor)}: {title(service)} has no port {endpoint['port']}"


def _probe_ports(pod: Pod, container: dict[str, Any]) -> Iterator[str]:
    own = {port["name"] for port in container.get("ports", [])}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        for way in ("httpGet", "tcpSocket"):
            port = container.get(probe, {}).get(way, {}).get("port")
            if port is not None and port not in own:
                yield f"{pod.name}/{container['name']}: {probe} asks at {port}, which it lacks"


def _volume(pod: Pod, volume: dict[str, Any], documents: list[Document]) -> Iterator[str]:
    there = set(map(title, documents))
    if "configMap" in volume and f"ConfigMap/{volume['configMap']['name']}" not in there:
        yield f"{pod.name}: there is no map {volume['configMap']['name']}"
    if "persistentVolumeClaim" in volume:
        claim = volume["persistentVolumeClaim"]["claimName"]
        if f"PersistentVolumeClaim/{claim}" not in there:
            yield f"{pod.name}: there is no claim {claim}"
    if "secret" in volume:
        name = volume["secret"]["secretName"]
        keys = {item["key"] for item in volume["secret"].get("items", [])}
        if not keys <= SECRETS.get(name, frozenset()) or name not in SECRETS:
            yield f"{pod.name}: no secret {name} with {sorted(keys)} is listed"


def _key_references(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every reference to a key of a secret or map, wherever it stands."""
    if isinstance(value, list):
        for item in value:
            yield from _key_references(item)
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("secretKeyRef", "configMapKeyRef"):
                yield key, item
            elif key == "authorization":
                yield "secretKeyRef", item["credentials"]
            elif key == "authOptions" and "secretName" in item:
                yield "secretKeyRef", {"name": item["secretName"], "key": "auth_token"}
            else:
                yield from _key_references(item)


def _key(
    document: Document, kind: str, reference: Mapping[str, Any], maps: Mapping[str, Document]
) -> Iterator[str]:
    name, key = reference["name"], reference["key"]
    if kind == "secretKeyRef":
        keys: Any = SECRETS.get(name, ())
    else:
        keys = maps.get(name, {}).get("data", {})
    if key not in keys:
        yield f"{title(document)}: there is no key {key} in {name}"


def _resources(where: str, asked: Mapping[str, Any]) -> Iterator[str]:
    requests, limits = asked.get("requests", {}), asked.get("limits", {})
    for what in ("cpu", "memory"):
        if what not in requests or what not in limits:
            yield f"{where}: no bounds of its {what}"
    for what in requests.keys() & limits.keys():
        if _quantity(requests[what]) > _quantity(limits[what]):
            yield f"{where}: asks for more {what} than it may have"


def _quantity(text: str | float) -> float:
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text))
    if found is None:
        raise ValueError(f"{text!r} is no quantity")
    return float(found[1]) * _SUFFIXES[found[2]]


RULES: tuple[Rule, ...] = (
    names,
    selectors,
    ports,
    named_ports,
    references,
    keys,
    secrets,
    resources,
    security.namespaces,
    security.restricted,
    security.roots,
    security.tokens,
    images,
    catalogs,
    probes,
    redis_bounds,
    rabbitmq,
    budgets,
    autoscaling,
    kuberay,
)
