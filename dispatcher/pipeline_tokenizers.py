"""The tokenizers that stages of a pipeline count with, as they were when it was created."""

from collections.abc import Mapping, Sequence

from shared.ledger.pipelines import read_tokenizer
from shared.pipeline.stepping import Step
from shared.storage import Storage


class PipelineTokenizers:
    """Reads each once, when rows first come to its stage."""

    def __init__(self, storage: Storage, pipeline_id: str, digests: Mapping[int, str]) -> None:
        self._storage = storage
        self._pipeline_id = pipeline_id
        self._digests = digests
        self._read: dict[str, bytes] = {}

    async def of(self, steps: Sequence[Step]) -> Mapping[int, bytes]:
        """The files of those that the steps count with, by stage. Raises BrokenObjectError."""
        found = {}
        for digest, stage in ((self._digests.get(one.stage), one.stage) for one in steps):
            if digest is None:
                continue
            if digest not in self._read:
                self._read[digest] = await read_tokenizer(self._storage, self._pipeline_id, digest)
            found[stage] = self._read[digest]
        return found
