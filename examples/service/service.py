"""An HTTP service whose users' questions become batches: `uvicorn service:app`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

import batchyard


class Question(BaseModel):
    """What a user sends."""

    user: str = Field(max_length=100)
    text: str = Field(min_length=1, max_length=4000)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """One client for all users: it collects their calls. At the end it waits for the last ones."""
    async with batchyard.AsyncBatchClient(
        collect_seconds=1.0, max_calls=500, metadata={"service": "questions"}
    ) as client:
        yield {"client": client}


app = FastAPI(lifespan=lifespan)


@app.post("/questions")
async def ask(question: Question, request: Request) -> dict[str, str]:
    """The answer, as soon as the row of this question has one."""
    client: batchyard.AsyncBatchClient = request.state.client
    try:
        completion = await client.chat.completions.create(
            model=os.environ["CHAT_MODEL"],
            messages=[{"role": "user", "content": question.text}],
            max_tokens=30,
        )
    except openai.APIStatusError as error:
        # What is wrong with one question is told to its user, and harms nobody else's.
        raise HTTPException(error.status_code, error.message) from error
    return {"user": question.user, "answer": completion.choices[0].message.content or ""}


@app.get("/waiting")
async def waiting(request: Request) -> int:
    """How many questions have no answer yet."""
    client: batchyard.AsyncBatchClient = request.state.client
    return client.waiting
