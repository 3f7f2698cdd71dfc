"""vLLM's answers to embeddings, written from arrays: no model of pydantic sees a vector."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

#: Answers with more vectors than this are written in a thread, since they take a while.
_MAX_AT_ONCE = 16


def write_from_arrays(serving: Any) -> None:
    """Let this `ServingEmbedding` write JSON as `vllm serve` does, in a tenth of the time."""
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingResponseData

    item = EmbeddingResponseData(index=0, embedding=[]).model_dump()
    serving._openai_json_response = partial(_answer, item)  # noqa: SLF001  # it has no public name
    in_thread = serving._postprocessing_async  # noqa: SLF001

    async def postprocess(io_processor: Any, ctx: Any) -> Any:
        if len(ctx.final_res_batch) > _MAX_AT_ONCE:
            return await in_thread(io_processor, ctx)
        return serving._postprocessing(io_processor, ctx)  # noqa: SLF001

    serving._postprocessing_async = postprocess  # noqa: SLF001


def _answer(
    item: dict[str, Any],
    outputs: Sequence[Any],
    request_id: str,
    created_time: int,
    model_name: str,
    encoding_format: str,
    embed_dtype: Any,
    endianness: Any,
) -> Response:
    """The arguments after `item` are those of vLLM's method of this name."""
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingResponse
    from vllm.entrypoints.pooling.utils import encode_pooling_output_base64, get_pooling_usage

    whole = EmbeddingResponse(
        id=request_id,
        created=created_time,
        model=model_name,
        data=[],
        usage=get_pooling_usage(outputs),
    ).model_dump()
    if encoding_format == "float":
        vectors = [output.outputs.data.tolist() for output in outputs]
    else:
        vectors = [encode_pooling_output_base64(one, embed_dtype, endianness) for one in outputs]
    whole["data"] = [
        {**item, "index": index, "embedding": vector} for index, vector in enumerate(vectors)
    ]
    return Response(msgspec.json.encode(whole), media_type="application/json")
