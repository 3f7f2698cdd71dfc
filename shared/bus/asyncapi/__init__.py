"""The bus contract as documents: `docs/asyncapi.yaml` and `docs/schemas`, made from the code.

`python -m shared.bus.asyncapi` writes them.
"""

from shared.bus.asyncapi.document import files, write
from shared.bus.asyncapi.message_list import all_messages

__all__ = ["all_messages", "files", "write"]
