"""vLLM's answers to embeddings, written from arrays: no model of pydantic sees a vector."""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

#: Answers with more vectors than this are written in a thread, since they take a while.
_MAX_AT_ONCE = 16


class EmbeddingAnswers:
    """Writes JSON as `vllm serve` does, in a tenth of the time."""

    def __init__(self) -> None:
        from vllm.entrypoints.pooling.embed.protocol import EmbeddingResponse, EmbeddingResponseData
        from vllm.entrypoints.serve.engine.protocol import UsageInfo

        self._item = EmbeddingResponseData(index=0, embedding=[]).model_dump()
        self._whole = EmbeddingResponse(
            id="", created=0, model="", data=[], usage=UsageInfo()
        ).model_dump()

    def write_for(self, serving: Any) -> None:
        """Let this `ServingEmbedding` answer with what is written here."""
        in_thread = serving._postprocessing_async  # noqa: SLF001  # it has no public name

        def respond(*args: Any) -> Response:
            return Response(self.body(*args), media_type="application/json")

        async def postprocess(io_processor: Any, ctx: Any) -> Any:
            if len(ctx.final_res_batch) > _MAX_AT_ONCE:
                return await in_thread(io_processor, ctx)
            return serving._postprocessing(io_processor, ctx)  # noqa: SLF001

        serving._openai_json_response = respond  # noqa: SLF001
        serving._postprocessing_async = postprocess  # noqa: SLF001

    def body(
        self,
        outputs: Sequence[Any],
        request_id: str,
        created_time: int,
        model_name: str,
        encoding_format: str,
        embed_dtype: Any,
        endianness: Any,
    ) -> bytes:
        """The arguments are those of vLLM's `_openai_json_response`."""
        from vllm.entrypoints.pooling.utils import encode_pooling_output_base64, get_pooling_usage

        if encoding_format == "float":
            vectors = [output.outputs.data.tolist() for output in outputs]
        else:
            vectors = [
                encode_pooling_output_base64(one, embed_dtype, endianness) for one in outputs
            ]
        return msgspec.json.encode(
            {
                **self._whole,
                "id": request_id,
                "created": created_time,
                "model": model_name,
                "data": [
                    {**self._item, "index": index, "embedding": vector}
                    for index, vector in enumerate(vectors)
                ],
                "usage": get_pooling_usage(outputs).model_dump(),
            }
        )
