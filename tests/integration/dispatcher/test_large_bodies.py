"""Rows as large as an input line may be, from their plan to their result."""

from tests.integration.dispatcher.conftest import BatchYard, Result, good, line

_TEN_MEGABYTES = 10_000_000


async def test_bodies_of_ten_megabytes_pass_whole(yard: BatchYard) -> None:
    asked = [chr(ord("a") + row) * _TEN_MEGABYTES for row in range(2)]
    body = b"".join(line(f"row-{row}", user=text) + b"\n" for row, text in enumerate(asked))
    batch_id = await yard.plan(body)
    # By their tokens, each is a slice of its own.
    assert [slice_.rows for slice_ in await yard.slices(batch_id)] == [1, 1]

    def echo(row: int) -> Result:
        return good(asked[row])

    await yard.run(batch_id, echo)
    await yard.finaliser.finish(batch_id)

    shape = (await yard.state.batches.get(batch_id)).to_openai()
    found = await yard.parsed(shape.output_file_id)
    assert [one["custom_id"] for one in found] == ["row-0", "row-1"]
    answers = [one["response"]["body"]["choices"][0] for one in found]
    assert answers == asked
    assert shape.error_file_id is None
