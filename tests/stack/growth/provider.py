"""Ray's autoscaler asks this class for nodes; it asks the test, which makes containers of them.

It stands alone in the head's container.
"""

import json
import urllib.request
from typing import Any

from ray.autoscaler.node_provider import NodeProvider

_SECONDS = 120


class ContainerNodes(NodeProvider):
    """What a cloud's nodes are to Ray. The test's answer is the truth at any time."""

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        return [
            name
            for name, node in self._nodes().items()
            if tag_filters.items() <= node["tags"].items()
        ]

    def is_running(self, node_id: str) -> bool:
        return node_id in self._nodes()

    def is_terminated(self, node_id: str) -> bool:
        return not self.is_running(node_id)

    def node_tags(self, node_id: str) -> dict[str, str]:
        return dict(self._nodes()[node_id]["tags"])

    def internal_ip(self, node_id: str) -> str:
        return str(self._nodes()[node_id]["address"])

    external_ip = internal_ip

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._ask("PUT", node_id, tags)

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> None:
        del node_config
        for _ in range(count):
            self._ask("POST", "", tags)

    def terminate_node(self, node_id: str) -> None:
        self._ask("DELETE", node_id)

    def _nodes(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = json.loads(self._ask("GET"))
        return found

    def _ask(self, method: str, node: str = "", tags: dict[str, str] | None = None) -> bytes:
        url = f"{self.provider_config['cloud']}/{node}"
        body = None if tags is None else json.dumps(tags).encode()
        request = urllib.request.Request(url, body, method=method)  # noqa: S310  # the test's own
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310  # as above
            return bytes(answer.read())
