"""Importing what registers itself in the cluster."""

import importlib
from types import ModuleType

import stamina

_ATTEMPTS = 10


def import_retried(name: str) -> ModuleType:
    """The module, once nobody else imports it for the first time in this cluster.

    Ray's engines enter their connectors in the cluster's own store as they are imported: first they
    look, then they write, and a second process that does the same at that moment gets a ValueError.
    """
    for attempt in stamina.retry_context(
        on=ValueError, attempts=_ATTEMPTS, timeout=None, wait_initial=0.1, wait_max=1.0
    ):
        with attempt:
            module = importlib.import_module(name)
    return module
