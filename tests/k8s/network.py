"""Which connections all network policies together allow."""

from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.k8s.pods import Pod, pods, selects
from tests.k8s.rendering import Document


class Outside(NamedTuple):
    """Somebody in another namespace, by labels, or at an address that is no pod's."""

    name: str
    namespace: dict[str, str] | None
    labels: Mapping[str, str] = MappingProxyType({})
    address: str = ""


CLIENT = Outside("client", {"batchyard-client": "true"})
PROMETHEUS = Outside("prometheus", {"kubernetes.io/metadata.name": "monitoring"})
COLLECTOR = Outside(
    "collector",
    {"kubernetes.io/metadata.name": "monitoring"},
    {"app.kubernetes.io/name": "opentelemetry-collector"},
)
STRANGER = Outside("stranger", {"kubernetes.io/metadata.name": "default"})
NAMES = Outside("dns", {"kubernetes.io/metadata.name": "kube-system"}, {"k8s-app": "kube-dns"})
NODE_NAMES = Outside("node-dns", None, address="169.254.20.10")
INTERNET = Outside("internet", None, address="203.0.113.7")
INTERNET_6 = Outside("internet-6", None, address="2001:db8::7")

Party = Pod | Outside
Flow = tuple[str, str, int | str]
_ANY = "any"


def flows(documents: list[Document]) -> set[Flow]:
    """From, to and port of every connection that is let through; `any` for all ports."""
    outside = (CLIENT, PROMETHEUS, COLLECTOR, STRANGER, NAMES, NODE_NAMES, INTERNET, INTERNET_6)
    parties: list[Party] = [*pods(documents), *outside]
    policies = [d["spec"] for d in documents if d["kind"] == "NetworkPolicy"]
    return {
        (source.name, target.name, port)
        for source in parties
        for target in parties
        if isinstance(source, Pod) or isinstance(target, Pod)
        for port in _open(policies, source, target)
    }


def _open(policies: list[dict[str, Any]], source: Party, target: Party) -> set[int | str]:
    sent = _allowed(policies, source, target, target, "egress")
    taken = _allowed(policies, target, source, target, "ingress")
    if _ANY in sent:
        return taken
    return sent if _ANY in taken else sent & taken


def _allowed(
    policies: list[dict[str, Any]], whose: Party, other: Party, server: Party, direction: str
) -> set[int | str]:
    """The ports on the side of `whose`; everything, where no policy is about it."""
    if isinstance(whose, Outside):
        return {_ANY}
    about = [
        policy
        for policy in policies
        if selects(policy["podSelector"], whose.labels)
        and direction.capitalize() in policy["policyTypes"]
    ]
    if not about:
        return {_ANY}
    rules = [rule for policy in about for rule in policy.get(direction, [])]
    return {port for rule in rules for port in _ports(rule, other, server, direction)}


def _ports(
    rule: dict[str, Any], other: Party, server: Party, direction: str
) -> Iterator[int | str]:
    peers = rule.get("from" if direction == "ingress" else "to")
    if peers is not None and not any(_is(peer, other) for peer in peers):
        return
    if "ports" not in rule:
        yield _ANY
    for port in rule.get("ports", []):
        number = port["port"]
        if isinstance(number, str):
            number = server.ports().get(number, number) if isinstance(server, Pod) else number
        # A range counts as its first port.
        yield number


def _is(peer: dict[str, Any], party: Party) -> bool:
    if "ipBlock" in peer:
        # Whether a block holds pods differs by network plugin: their own lines have to do.
        if isinstance(party, Pod) or not party.address:
            return False
        return ip_address(party.address) in ip_network(peer["ipBlock"]["cidr"])
    if isinstance(party, Pod):
        return "namespaceSelector" not in peer and selects(peer["podSelector"], party.labels)
    if party.namespace is None or "namespaceSelector" not in peer:
        return False
    return selects(peer["namespaceSelector"], party.namespace) and selects(
        peer.get("podSelector", {}), party.labels
    )
