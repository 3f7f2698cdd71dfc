"""Lines of objects in a real S3, merged in a memory that does not grow with them."""

import tracemalloc

from shared import ids
from shared.checksums import checksum
from shared.ledger.merging import merged, read_lines
from shared.slices import Section
from shared.storage import Storage

BATCH = "batch_" + "ab" * 16
_MEBIBYTE = 1024 * 1024


async def test_large_parts_are_merged_in_a_memory_of_a_few_steps(storage: Storage) -> None:
    rows = 4096
    bodies = [b"".join(_line(row) for row in range(first, rows, 2)) for first in (0, 1)]
    for number, body in enumerate(bodies):
        # A section of it, as in a part that has errors too.
        await storage.put(f"part-{number}", b"x" * 7 + body + b"never read")
    size = len(bodies[0])
    assert size > 8 * _MEBIBYTE
    del bodies
    section = Section(7, 7 + size, "")
    streams = [read_lines(storage, f"part-{number}", section) for number in (0, 1)]

    expected = 0
    tracemalloc.start()
    try:
        async for line in merged(streams):
            assert ids.row_of_result(line) == expected
            expected += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert expected == rows
    assert peak < 4 * _MEBIBYTE


async def test_a_line_longer_than_a_step_stays_whole(storage: Storage) -> None:
    lines = [_line(0), _line(1, _MEBIBYTE), _line(2)]
    await storage.put("part", b"".join(lines))

    body = b"".join(lines)
    section = Section(0, len(body), checksum(body))
    found = [line async for line in read_lines(storage, "part", section)]

    assert found == lines


def _line(row: int, size: int = 4096) -> bytes:
    return f'{{"id":"{ids.result_id(BATCH, row)}","x":"{"y" * size}"}}\n'.encode()
