"""Errors that people make, each planted into the good manifests and found by name."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.k8s import rules, schemas
from tests.k8s.network import flows
from tests.k8s.rendering import Document

Fleet = dict[str, Any]


class Plant(NamedTuple):
    """What is changed, and what of the complaint must be read."""

    change: Callable[[Fleet], object]
    complaint: str


def _pod(fleet: Fleet, workload: str) -> Any:
    return fleet[workload]["spec"]["template"]["spec"]


def _container(fleet: Fleet, workload: str) -> Any:
    return _pod(fleet, workload)["containers"][0]


def _ray(fleet: Fleet) -> Any:
    return fleet["RayCluster/batchyard"]["spec"]


def _group(fleet: Fleet, index: int) -> Any:
    return _ray(fleet)["workerGroupSpecs"][index]


def _worker(fleet: Fleet, index: int) -> Any:
    return _group(fleet, index)["template"]["spec"]["containers"][0]


def _rabbitmq(fleet: Fleet) -> Any:
    override = fleet["RabbitmqCluster/rabbitmq"]["spec"]["override"]
    return override["statefulSet"]["spec"]["template"]["spec"]


def _open_container(fleet: Fleet) -> Any:
    return {**_container(fleet, _D), "name": "first", "securityContext": {}}


def _env(fleet: Fleet, workload: str, name: str) -> Any:
    [found] = [one for one in _container(fleet, workload)["env"] if one["name"] == name]
    return found


_G, _D, _R = "Deployment/gateway", "Deployment/dispatcher", "StatefulSet/redis"

BY_RULES = {
    "a name that is too long": Plant(
        lambda f: f["RayCluster/batchyard"]["metadata"].update(name="r" * 54), "not a name"
    ),
    "another namespace": Plant(
        lambda f: f["Service/gateway"]["metadata"].update(namespace="default"), "default"
    ),
    "a workload that does not select its pods": Plant(
        lambda f: f[_G]["spec"]["selector"].update(matchLabels={"app": "gateway"}),
        "Deployment/gateway: its selector meets no pod",
    ),
    "a service that selects nothing": Plant(
        lambda f: f["Service/gateway"]["spec"].update(selector={"app": "gateway"}),
        "Service/gateway: its selector meets no pod",
    ),
    "a budget that selects nothing": Plant(
        lambda f: f["PodDisruptionBudget/redis"]["spec"].update(
            selector={"matchLabels": {"app": "redis"}}
        ),
        "PodDisruptionBudget/redis: its selector meets no pod",
    ),
    "a policy for nobody": Plant(
        lambda f: f["NetworkPolicy/redis"]["spec"].update(
            podSelector={"matchLabels": {"app.kubernetes.io/name": "reddis"}}
        ),
        "NetworkPolicy/redis: its selector meets no pod",
    ),
    "a policy that lets nobody in": Plant(
        lambda f: f["NetworkPolicy/redis"]["spec"]["ingress"][0]["from"][0]["podSelector"].update(
            matchLabels={"app": "gateway"}
        ),
        "from meets no pod",
    ),
    "a policy without its type": Plant(
        lambda f: f["NetworkPolicy/gateway"]["spec"].update(policyTypes=["Ingress"]),
        "egress is not among its types",
    ),
    "a policy for a port that is not there": Plant(
        lambda f: f["NetworkPolicy/redis"]["spec"]["ingress"][0].update(ports=[{"port": "rdis"}]),
        "redis has no port rdis",
    ),
    "a monitor of no service": Plant(
        lambda f: f["Service/gateway"]["metadata"].update(labels={}),
        "ServiceMonitor/gateway: its selector meets no service",
    ),
    "a monitor at a port that is not there": Plant(
        lambda f: f["PodMonitor/ray"]["spec"].update(podMetricsEndpoints=[{"port": "metric"}]),
        "has no port metric",
    ),
    "an autoscaler of nothing": Plant(
        lambda f: f["HorizontalPodAutoscaler/gateway"]["spec"]["scaleTargetRef"].update(name="gw"),
        "there is no Deployment/gw",
    ),
    "a port's name that is too long": Plant(
        lambda f: _container(f, _D)["ports"].append(
            {"name": "health-and-metrics", "containerPort": 1}
        ),
        "health-and-metrics is no name of a port",
    ),
    "a service to a port that is not there": Plant(
        lambda f: f["Service/gateway"]["spec"]["ports"][0].update(targetPort="web"),
        "gateway has no port web",
    ),
    "a probe at a port that is not there": Plant(
        lambda f: _container(f, _G)["readinessProbe"]["httpGet"].update(port="htp"),
        "readinessProbe asks at htp",
    ),
    "a secret that nobody makes": Plant(
        lambda f: _env(f, _G, "BATCHYARD_REDIS_URL")["valueFrom"]["secretKeyRef"].update(
            name="redis"
        ),
        "there is no key url in redis",
    ),
    "a key that the secret lacks": Plant(
        lambda f: _env(f, _G, "BATCHYARD_S3_ACCESS_KEY")["valueFrom"]["secretKeyRef"].update(
            key="access_key"
        ),
        "there is no key access_key in batchyard-s3",
    ),
    "a token of another secret": Plant(
        lambda f: _ray(f)["authOptions"].update(secretName="ray"), "no key auth_token in ray"
    ),
    "a map that is not there": Plant(
        lambda f: _pod(f, _D)["volumes"][0]["configMap"].update(name="catalogue"),
        "there is no map catalogue",
    ),
    "settings that are not there": Plant(
        lambda f: _worker(f, 0).update(envFrom=[{"configMapRef": {"name": "setting"}}]),
        "there is no map setting",
    ),
    "a claim that is not there": Plant(
        lambda f: _pod(f, _G)["volumes"][1]["persistentVolumeClaim"].update(claimName="model"),
        "there is no claim model",
    ),
    "a volume that is not there": Plant(
        lambda f: _container(f, _R)["volumeMounts"][0].update(name="date"),
        "there is no volume date",
    ),
    "an account that is not there": Plant(
        lambda f: _pod(f, _G).update(serviceAccountName="gate"), "there is no account gate"
    ),
    "a variable that is set twice": Plant(
        lambda f: _container(f, _G)["env"].append({"name": "HF_HOME", "value": "/tmp"}),
        "HF_HOME is set twice",
    ),
    "a secret among the manifests": Plant(
        lambda f: f.update(
            {
                "Secret/x": {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": "x", "namespace": "batchyard"},
                }
            }
        ),
        "a secret in the open",
    ),
    "a password in the open": Plant(
        lambda f: _container(f, _R)["env"].append({"name": "REDIS_PASSWORD", "value": "x"}),
        "REDIS_PASSWORD in the open",
    ),
    "no memory limit": Plant(
        lambda f: _container(f, _D)["resources"]["limits"].pop("memory"),
        "no bounds of its memory",
    ),
    "more asked for than allowed": Plant(
        lambda f: _container(f, _G)["resources"]["requests"].update(memory="2Gi"),
        "asks for more memory",
    ),
    "a namespace for everything": Plant(
        lambda f: f["Namespace/batchyard"]["metadata"]["labels"].update(
            {"pod-security.kubernetes.io/enforce": "baseline"}
        ),
        "enforces baseline",
    ),
    "root": Plant(lambda f: _pod(f, _R)["securityContext"].update(runAsUser=0), "runs as root"),
    "no seccomp profile": Plant(
        lambda f: _pod(f, _G)["securityContext"].pop("seccompProfile"), "no seccomp profile"
    ),
    "a capability": Plant(
        lambda f: _container(f, _D)["securityContext"]["capabilities"].update(add=["NET_ADMIN"]),
        "keeps capabilities",
    ),
    "a root that can be written": Plant(
        lambda f: _worker(f, 1)["securityContext"].update(readOnlyRootFilesystem=False),
        "ray-a100/ray-worker: its root can be written",
    ),
    "an open autoscaler": Plant(
        lambda f: _ray(f)["autoscalerOptions"].pop("securityContext"),
        "ray-head/autoscaler: may gain privileges",
    ),
    "the node's files": Plant(
        lambda f: _pod(f, _D)["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
        "the volume x is a hostPath",
    ),
    "an account's token": Plant(
        lambda f: _pod(f, _R).pop("automountServiceAccountToken"), "a token of its account"
    ),
    "a container that is root": Plant(
        lambda f: _container(f, _G)["securityContext"].update(runAsUser=0),
        "gateway/gateway: runs as root",
    ),
    "a container that may be root": Plant(
        lambda f: _worker(f, 2)["securityContext"].update(runAsNonRoot=False),
        "ray-l4/ray-worker: may run as root",
    ),
    "a container without a seccomp profile": Plant(
        lambda f: _container(f, _D)["securityContext"].update(
            seccompProfile={"type": "Unconfined"}
        ),
        "dispatcher/dispatcher: no seccomp profile",
    ),
    "a privileged container": Plant(
        lambda f: _container(f, _R)["securityContext"].update(privileged=True),
        "redis/redis: is privileged",
    ),
    "a port of the node": Plant(
        lambda f: _container(f, _D)["ports"][0].update(hostPort=8001),
        "dispatcher/dispatcher: a port of the node's",
    ),
    "the node's processes": Plant(
        lambda f: _container(f, _G)["securityContext"].update(procMount="Unmasked"),
        "gateway/gateway: procMount",
    ),
    "an open init container": Plant(
        lambda f: _pod(f, _D).update(initContainers=[_open_container(f)]),
        "dispatcher/first: may gain privileges",
    ),
    "an open container that comes later": Plant(
        lambda f: _pod(f, _D).update(ephemeralContainers=[_open_container(f)]),
        "dispatcher/first: keeps capabilities",
    ),
    "an open init container of RabbitMQ": Plant(
        lambda f: _rabbitmq(f)["initContainers"][0]["securityContext"].update(runAsUser=0),
        "rabbitmq/setup-container: runs as root",
    ),
    "a RabbitMQ that writes anywhere": Plant(
        lambda f: _rabbitmq(f)["containers"][0]["securityContext"].pop("readOnlyRootFilesystem"),
        "rabbitmq/rabbitmq: its root can be written",
    ),
    "a RabbitMQ that the operator restarts for ever": Plant(
        lambda f: f["RabbitmqCluster/rabbitmq"]["spec"].update(image="rabbitmq:4.2.3"),
        "rabbitmq:4.2.3 never answers",
    ),
    "an image without a tag": Plant(
        lambda f: _container(f, _R).update(image="redis"), "redis is not pinned"
    ),
    "the latest image": Plant(
        lambda f: _worker(f, 0).update(image="batchyard/worker:latest"), "latest is not pinned"
    ),
    "settings in a secret that nobody makes": Plant(
        lambda f: _container(f, _G).update(envFrom=[{"secretRef": {"name": "settings"}}]),
        "gateway/gateway: no secret settings is listed",
    ),
    "a catalog that is replaced in one of its two maps": Plant(
        lambda f: f["ConfigMap/ray-catalog"].update(data={"catalog.yaml": "pools: {}"}),
        "ray-catalog hold different catalogs",
    ),
    "a gateway that leaves with S3": Plant(
        lambda f: _container(f, _G)["readinessProbe"]["httpGet"].update(path="/readyz"),
        "gateway/gateway: its readinessProbe fails with a service",
    ),
    "a dispatcher that dies with S3": Plant(
        lambda f: _container(f, _D)["livenessProbe"]["httpGet"].update(path="/readyz"),
        "dispatcher/dispatcher: its livenessProbe fails with a service",
    ),
    "a Redis without a bound": Plant(
        lambda f: _container(f, _R).update(command=["redis-server", "/etc/redis/redis.conf"]),
        "redis/redis: Redis has no bound",
    ),
    "a Redis that is bound by what it asks for": Plant(
        lambda f: _env(f, _R, "MEMORY_LIMIT")["valueFrom"]["resourceFieldRef"].update(
            resource="requests.memory"
        ),
        "redis/redis: Redis has no bound",
    ),
    "a Redis that may fill its container": Plant(
        lambda f: _container(f, _R)["command"].append(
            _container(f, _R)["command"].pop().replace("* 60", "* 95")
        ),
        "no room for rewriting the log beside 95 percent",
    ),
    "no liveness probe": Plant(
        lambda f: _container(f, _D).pop("livenessProbe"), "dispatcher: no livenessProbe"
    ),
    "a budget that holds up a node": Plant(
        lambda f: f["PodDisruptionBudget/gateway"]["spec"].pop("unhealthyPodEvictionPolicy"),
        "holds unwell pods",
    ),
    "no budget": Plant(lambda f: f.pop("PodDisruptionBudget/dispatcher"), "dispatcher: no budget"),
    "replicas beside an autoscaler": Plant(
        lambda f: f[_G]["spec"].update(replicas=2), "replicas, and an autoscaler"
    ),
    "Ray without its token": Plant(
        lambda f: _ray(f)["authOptions"].update(mode="disabled"), "RayCluster: no token"
    ),
    "Ray that forgets": Plant(
        lambda f: _ray(f).pop("gcsFaultToleranceOptions"), "forgets all with its head"
    ),
    "the first autoscaler": Plant(
        lambda f: _ray(f)["autoscalerOptions"].update(version="v1"), "second autoscaler"
    ),
    "a switch that is the operator's": Plant(
        lambda f: _worker(f, 0)["env"].append({"name": "RAY_enable_autoscaler_v2", "value": "1"}),
        "RAY_enable_autoscaler_v2 is the operator's",
    ),
    "a worker that is restarted": Plant(
        lambda f: _group(f, 2)["template"]["spec"].update(restartPolicy="Always"), "restarted"
    ),
    "resources said twice": Plant(
        lambda f: _group(f, 0)["rayStartParams"].update({"num-gpus": "1"}), "num-gpus"
    ),
    "network policies by a closed gate": Plant(
        lambda f: _ray(f).update(networkPolicy={"mode": "DenyAll"}),
        "RayCluster: networkPolicy needs a gate",
    ),
    "TLS by a closed gate": Plant(
        lambda f: _ray(f).update(tlsOptions={"enabled": True}),
        "RayCluster: tlsOptions needs a gate",
    ),
    "a store of Ray's by a closed gate": Plant(
        lambda f: _ray(f)["gcsFaultToleranceOptions"].update(backend="rocksdb"),
        "RayCluster: a store that needs a gate",
    ),
    "two groups of one name": Plant(
        lambda f: _group(f, 1).update(groupName="h100"), "two groups of one name"
    ),
    "a group that is never empty": Plant(
        lambda f: _group(f, 0).update(minReplicas=1), "begins with more than nothing"
    ),
    "a group without an idle time": Plant(
        lambda f: _group(f, 0).pop("idleTimeoutSeconds"), "no idleTimeoutSeconds"
    ),
    "GPUs that Ray does not know of": Plant(
        lambda f: _group(f, 0)["resources"].pop("GPU"), "Ray counts None GPUs"
    ),
    "an accelerator that is a label only": Plant(
        lambda f: _group(f, 2)["resources"].pop("accelerator_type:L4"), "L4 as a label"
    ),
    "cores that Ray counts wrongly": Plant(
        lambda f: _group(f, 3)["resources"].update(CPU="64"), "Ray counts 64 cores"
    ),
    "a group of another pool": Plant(
        lambda f: _group(f, 3)["labels"].update(pool="cpus"), "names the pool cpus"
    ),
    "a GPU node that may be taken away": Plant(
        lambda f: _group(f, 0)["template"]["metadata"].pop("annotations"), "may be evicted"
    ),
    "a head that takes work": Plant(
        lambda f: _ray(f)["headGroupSpec"].pop("resources"), "the head takes work"
    ),
}

BY_SCHEMA = {
    "a misspelt field": Plant(
        lambda f: f[_G]["spec"].update(stratgy={}), "'stratgy' was unexpected"
    ),
    "a text for a number": Plant(lambda f: f[_D]["spec"].update(replicas="2"), "spec.replicas"),
    "a misspelt field in a container": Plant(
        lambda f: _container(f, _G)["securityContext"].update(readonlyRootFilesystem=True),
        "'readonlyRootFilesystem' was unexpected",
    ),
    "a kind of another group": Plant(
        lambda f: f["PodDisruptionBudget/redis"].update(apiVersion="policy/v2"), "policy/v2"
    ),
    "a missing field": Plant(lambda f: f["Service/redis"]["spec"].update(ports=[{}]), "'port'"),
}

BY_DEFINITION = {
    "a misspelt field of Ray": Plant(
        lambda f: _group(f, 0).update(idleTimeoutSecond=60), "idleTimeoutSecond"
    ),
    "an unknown mode of Ray": Plant(
        lambda f: _ray(f)["authOptions"].update(mode="tokens"), "'tokens' is not one of"
    ),
    "a field of Ray's that stands too deep": Plant(
        lambda f: _group(f, 0)["template"]["spec"].update(groupName="h100"), "groupName"
    ),
    "a misspelt field of RabbitMQ": Plant(
        lambda f: f["RabbitmqCluster/rabbitmq"]["spec"].update(replica=3), "replica"
    ),
    "a misspelt field of a monitor": Plant(
        lambda f: f["PodMonitor/ray"]["spec"].update(podMetricEndpoints=[]), "podMetricEndpoints"
    ),
    "a rule without an expression": Plant(
        lambda f: f["PrometheusRule/batchyard"]["spec"]["groups"][0]["rules"][0].pop("expr"),
        "'expr' is a required property",
    ),
}


@pytest.fixture
def fleet(overlays: dict[str, list[Document]]) -> Fleet:
    """The production overlay by kind and name, to be changed."""
    documents = copy.deepcopy(overlays["production"])
    return {f"{d['kind']}/{d['metadata']['name']}": d for d in documents}


@pytest.mark.parametrize("plant", BY_RULES.values(), ids=BY_RULES.keys())
def test_a_planted_error_is_found_by_the_rules(fleet: Fleet, plant: Plant) -> None:
    plant.change(fleet)

    assert plant.complaint in "\n".join(rules.problems(list(fleet.values())))


@pytest.mark.parametrize("plant", BY_SCHEMA.values(), ids=BY_SCHEMA.keys())
def test_a_planted_error_is_found_by_the_schemas(fleet: Fleet, plant: Plant) -> None:
    assert plant.complaint in _schema_problems(fleet, plant)


@pytest.mark.skipif(not schemas.CRDS.is_dir(), reason=f"no schemas in {schemas.CRDS}")
@pytest.mark.parametrize("plant", BY_DEFINITION.values(), ids=BY_DEFINITION.keys())
def test_a_planted_error_is_found_by_the_operators_schemas(fleet: Fleet, plant: Plant) -> None:
    assert plant.complaint in _schema_problems(fleet, plant)


@pytest.mark.parametrize(
    ("policy", "flow"),
    [
        ("redis", ("ray-head", "redis", 6379)),
        ("dispatcher", ("dispatcher", "ray-head", 8265)),
        ("names", ("gateway", "dns", 53)),
        ("outside", ("ray-l4", "internet", 443)),
    ],
)
def test_without_its_policy_a_pair_does_not_talk(
    fleet: Fleet, policy: str, flow: tuple[str, str, int]
) -> None:
    assert flow in flows(list(fleet.values()))

    del fleet[f"NetworkPolicy/{policy}"]

    assert flow not in flows(list(fleet.values()))


@pytest.mark.parametrize(
    ("policy", "flow"),
    [
        ("names", ("dispatcher", "node-dns", 53)),
        ("outside", ("gateway", "internet-6", 443)),
        ("ray-head", ("ray-head", "internet-6", 6443)),
    ],
)
def test_without_its_block_an_address_is_not_reached(
    fleet: Fleet, policy: str, flow: tuple[str, str, int]
) -> None:
    for rule in fleet[f"NetworkPolicy/{policy}"]["spec"]["egress"]:
        rule["to"] = rule["to"][:1]

    assert flow not in flows(list(fleet.values()))


def test_without_the_denial_strangers_come_in(fleet: Fleet) -> None:
    del fleet["NetworkPolicy/default-deny"]
    del fleet["NetworkPolicy/redis"]

    assert ("stranger", "redis", "any") in flows(list(fleet.values()))


def _schema_problems(fleet: Fleet, plant: Plant) -> str:
    before = copy.deepcopy(fleet)
    plant.change(fleet)
    changed = [document for name, document in fleet.items() if document != before[name]]
    assert changed
    return "\n".join(problem for document in changed for problem in schemas.problems(document))
