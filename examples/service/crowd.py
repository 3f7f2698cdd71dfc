"""crowd.py URL [USERS]: many users ask the service within three seconds, each one question."""

import asyncio
import random
import sys
import time

import httpx

WORDS = ("trains", "tides", "bread", "glass", "bees", "bridges", "clocks", "salt")


async def ask(http: httpx.AsyncClient, number: int) -> float:
    """Seconds until this user had an answer."""
    await asyncio.sleep(random.uniform(0, 3))
    began = time.monotonic()
    text = f"User {number} wants to know: why are {WORDS[number % len(WORDS)]} interesting?"
    answer = await http.post("/questions", json={"user": f"user-{number}", "text": text})
    answer.raise_for_status()
    return time.monotonic() - began


async def main(url: str, users: int) -> None:
    # The service answers when the batch does.
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits()) as http:
        seconds = sorted(await asyncio.gather(*(ask(http, number) for number in range(users))))
    middle = seconds[users // 2]
    print(f"{users} users have an answer; half of them waited {middle:.1f} s or less,")
    print(f"the last one {seconds[-1]:.1f} s")


url, *users = sys.argv[1:]
asyncio.run(main(url, int(users[0]) if users else 300))
