"""vLLM's own encoder and decoder at both ends; a class of this file stands for its core client."""

import asyncio
import queue
from typing import Any, cast

import pytest
from vllm.pooling_params import PoolingParams
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.request import Request
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from tests.eventually import eventually
from worker.core_sequences import EncodedSequence, SequenceSender, take_sequences
from worker.ranks import FIRST
from worker.step_limit import FREE, Group, group_in, headers

FOR_EVER = 3600.0


class Client:
    """vLLM's client of its core, as far as it is used; the core is in the same process."""

    client_index = 3

    def __init__(self) -> None:
        self.encoder = MsgpackEncoder()
        self.outputs_queue: asyncio.Queue[EngineCoreOutputs] = asyncio.Queue()
        self.is_alive = True
        self.core = Core()
        #: What went over each way: the ids of each message.
        self.alone: list[str] = []
        #: What vLLM's own way was given last.
        self.last: Any = None
        self.together: list[list[str]] = []
        self.aborted: list[str] = []

    def ensure_alive(self) -> None:
        if not self.is_alive:
            raise EngineDeadError

    async def add_request_async(self, request: Any) -> None:
        self.alone.append(request.request_id)
        self.last = request

    async def abort_requests_async(self, ids: list[str]) -> None:
        self.aborted += ids

    async def call_utility_async(self, method: str, *args: Any) -> None:
        self.ensure_alive()
        frames: Any = self.encoder.encode((self.client_index, 1, method, args))
        _, _, name, sent = MsgpackDecoder().decode([bytes(one) for one in frames])
        before = len(self.core.added)
        getattr(self.core, name)(*sent)
        self.together.append([one.request_id for one in self.core.added[before:]])


class Core(EngineCoreProc):
    """vLLM's core without an engine: it takes sequences."""

    def __init__(self) -> None:
        self.mm_receiver_cache = None
        self.request_block_hasher = None
        self.output_queue = queue.Queue()
        self.added: list[Request] = []

    def add_request(self, request: Request, request_wave: int = 0) -> None:
        if request.request_id == "refused":
            raise ValueError("Unsupported task")
        self.added.append(request)


@pytest.fixture(autouse=True)
def taking() -> None:
    take_sequences()


def a_request(
    id_: str, *, priority: int = 7, group: Group | None = None, **fields: Any
) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=id_,
        prompt_token_ids=[5, 6, 7],
        mm_features=None,
        sampling_params=None,
        pooling_params=PoolingParams(task="embed"),
        arrival_time=1.5,
        lora_request=None,
        cache_salt="salt",
        data_parallel_rank=None,
        priority=priority,
        trace_headers=headers(FREE, is_live=False, group=group),
        **fields,
    )


async def test_sequences_of_a_few_milliseconds_are_one_message() -> None:
    client = Client()
    sender = SequenceSender(client, linger=0.01)

    for id_ in "abc":
        await sender.add(a_request(id_))
    await eventually(lambda: client.together == [["a", "b", "c"]])

    assert client.alone == []
    one = client.core.added[0]
    assert (one.client_index, one.priority, one.cache_salt) == (3, 7, "salt")
    assert one.prompt_token_ids == [5, 6, 7]
    assert one.trace_headers == headers(FREE, is_live=False)


def an_encoded(id_: str, *, priority: int = 7, group: Group | None = None) -> EncodedSequence:
    """As a front sends it, with other fields than it is given with its seat."""
    frames: Any = MsgpackEncoder().encode(a_request(id_, priority=2))
    [body] = map(bytes, frames)
    encoded = EncodedSequence(id_, body, prompt_tokens=3, trace_headers=None)
    encoded.priority, encoded.cache_salt = priority, "another"
    encoded.trace_headers = headers(8, is_live=False, group=group)
    return encoded


async def test_the_core_sets_what_a_sequence_of_a_front_has_got_on_its_way() -> None:
    client = Client()
    sender = SequenceSender(client, linger=0.01)

    await sender.add(an_encoded("a"))
    await sender.add(a_request("b"))
    await eventually(lambda: client.together == [["a", "b"]])

    encoded, whole = client.core.added
    assert encoded.prompt_token_ids == whole.prompt_token_ids == [5, 6, 7]
    assert (encoded.client_index, encoded.priority, encoded.cache_salt) == (3, 7, "another")
    assert encoded.trace_headers == headers(8, is_live=False)
    assert (whole.client_index, whole.priority, whole.cache_salt) == (3, 7, "salt")


async def test_a_sequence_of_a_front_that_goes_first_is_one_of_vllms_own() -> None:
    client = Client()
    sender = SequenceSender(client, linger=FOR_EVER)

    await sender.add(an_encoded("small", priority=-1))

    assert client.alone == ["small"]
    assert client.last.prompt_token_ids == [5, 6, 7]
    assert (client.last.priority, client.last.cache_salt) == (-1, "another")
    assert client.last.trace_headers == headers(8, is_live=False)


async def test_what_goes_first_is_a_message_of_its_own_and_waits_for_nobody() -> None:
    client = Client()
    sender = SequenceSender(client, linger=FOR_EVER)

    await sender.add(a_request("other"))
    await sender.add(a_request("small", priority=-1))
    await sender.add(a_request("live", priority=-2 * FIRST))

    assert client.alone == ["small", "live"]


async def test_a_group_of_a_small_batch_is_one_message_as_soon_as_it_is_whole() -> None:
    client = Client()
    sender = SequenceSender(client, linger=FOR_EVER)
    first, second = Group(1, 2), Group(2, 2)

    await sender.add(a_request("giant"))
    await sender.add(a_request("a", priority=-1, group=first))
    await sender.add(an_encoded("b", priority=-1, group=second))
    await sender.add(an_encoded("c", priority=-1, group=first))
    await eventually(lambda: client.together == [["a", "c"]])
    await sender.add(a_request("d", priority=-1, group=second))
    await eventually(lambda: client.together == [["a", "c"], ["b", "d"]])

    assert client.alone == []
    assert [group_in(one.trace_headers) for one in client.core.added] == [
        *(first, first),
        *(second, second),
    ]


async def test_what_has_come_of_a_group_waits_for_the_rest_only_for_a_while() -> None:
    client = Client()
    sender = SequenceSender(client, linger=0.01)
    group = Group(1, 3)

    await sender.add(a_request("a", priority=-1, group=group))
    await sender.add(a_request("b", priority=-1, group=group))
    await sender.abort(["a"])
    await eventually(lambda: client.together == [["b"]])
    # A row may have several sequences.
    await sender.add(a_request("c", priority=-1, group=group))
    await eventually(lambda: client.together == [["b"], ["c"]])

    assert client.aborted == []


async def test_a_sequence_that_has_not_been_sent_never_is_once_it_is_aborted() -> None:
    client = Client()
    sender = SequenceSender(client, linger=0.01)

    await sender.add(a_request("sent"))
    await eventually(lambda: client.together == [["sent"]])
    for id_ in ("kept", "given up"):
        await sender.add(a_request(id_))
    await sender.abort(["sent", "given up"])
    await eventually(lambda: client.together == [["sent"], ["kept"]])

    assert client.aborted == ["sent"]


async def test_a_sequence_that_the_core_cannot_take_fails_by_itself() -> None:
    client = Client()
    sender = SequenceSender(client, linger=0.01)

    for id_ in ("a", "refused", "b"):
        await sender.add(a_request(id_))
    await eventually(lambda: client.together == [["a", "b"]])

    index, outputs = cast("tuple[int, EngineCoreOutputs]", client.core.output_queue.get_nowait())
    [failed] = outputs.outputs
    assert (index, failed.request_id, failed.finish_reason) == (3, "refused", FinishReason.ERROR)


async def test_a_sequence_that_cannot_be_sent_has_an_output_that_says_so() -> None:
    client = Client()
    sender = SequenceSender(client, linger=0.01)

    await sender.add(a_request("a"))
    client.is_alive = False

    [failed] = (await asyncio.wait_for(client.outputs_queue.get(), 5)).outputs
    assert (failed.request_id, failed.finish_reason) == ("a", FinishReason.ERROR)
    with pytest.raises(EngineDeadError):
        await sender.add(a_request("b"))


async def test_a_request_with_tensors_is_a_message_of_its_own() -> None:
    import torch

    client = Client()
    sender = SequenceSender(client, linger=FOR_EVER)

    await sender.add(a_request("large", prompt_embeds=torch.zeros(200, 200)))

    assert client.alone == ["large"]
