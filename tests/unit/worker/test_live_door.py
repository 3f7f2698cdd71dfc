import socket

from tests.live_replica import a_door


async def test_doors_that_open_at_the_same_time_have_ports_of_their_own() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        ports = free.getsockname()[1], 65_535
    one, other = a_door(), a_door()

    # Neither has served yet.
    doors = [await one.open("r1", "127.0.0.1", ports), await other.open("r2", "127.0.0.1", ports)]

    try:
        assert doors[0].port != doors[1].port
    finally:
        await one.close()
        await other.close()
