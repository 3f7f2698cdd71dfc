"""Between vLLM's front and its core: seats on the way in, and progress on the way out.

These are methods of vLLM's `AsyncMPClient`, which is no public interface.
"""

from dataclasses import replace
from typing import Any

from worker.engine_numbers import CoreMeter
from worker.engine_seats import StepOutput
from worker.entrance import Entrance
from worker.progress import Progress


def attend(core: Any, entrance: Entrance, progress: Progress, meter: CoreMeter) -> None:
    """Give each sequence a seat before vLLM's core has it, and note what the core says."""
    add, abort = core.add_request_async, core.abort_requests_async
    get_output = core.get_output_async

    async def add_seated(request: Any) -> None:
        params = request.sampling_params
        seat = await entrance.seat(
            request.request_id,
            prompt_tokens=len(request.prompt_token_ids or ()),
            max_tokens=0 if params is None else params.max_tokens or 0,
        )
        if seat is not None:
            # These are ours to set: what a tenant writes into a body never gets here.
            request.priority = seat.row.rank
            set_salt(request, seat.row.work.cache_salt)
            if seat.told:
                request.trace_headers = {**(request.trace_headers or {}), **seat.told}
        await add(request)

    async def abort_and_release(ids: list[str]) -> None:
        await abort(ids)
        entrance.release(ids)

    async def get_and_note_output() -> Any:
        try:
            outputs = await get_output()
        except Exception as error:
            _fail_questions(core, error)
            raise
        progress.note()
        stats = outputs.scheduler_stats
        meter.note(stats, outputs.outputs)
        steps = [
            StepOutput(
                one.request_id,
                len(one.new_token_ids),
                one.finish_reason is not None,
                None if one.prefill_stats is None else one.prefill_stats.num_computed_tokens,
            )
            for one in outputs.outputs
        ]
        entrance.note(None if stats is None else stats.kv_cache_usage, steps, meter.numbers)
        return outputs

    core.add_request_async = add_seated
    core.abort_requests_async = abort_and_release
    core.get_output_async = get_and_note_output


def _fail_questions(core: Any, error: Exception) -> None:
    """Let whoever has asked the core something, such as to load an adapter, know that it is dead.

    vLLM leaves them waiting.
    """
    for answer in list(core.utility_results.values()):
        if not answer.done():
            answer.set_exception(error)


def set_salt(request: Any, salt: str) -> None:
    """Let the request share nothing in vLLM's caches with requests of another salt.

    vLLM salts the beginnings of prompts itself. What it has computed of images, sounds and videos
    it keeps under their names alone.
    """
    request.cache_salt = salt or None
    if salt and request.mm_features:
        # The list belongs to all sequences of a row.
        request.mm_features = [
            replace(feature, identifier=f"{salt}:{feature.identifier}")
            for feature in request.mm_features
        ]
