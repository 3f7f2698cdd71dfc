"""documents.py FOLDER [DOCUMENTS] --tokenizer FILE: embed documents by token ids, and search."""

import argparse
import asyncio
import os
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from notes import notes
from tokenizers import Tokenizer

import batchyard

SHARD_ROWS = 5000
#: So many shards are asked side by side; each is a batch, and its rows go to all engines.
AT_A_TIME = 8
MAX_TOKENS = 256
QUESTIONS = ("Who mended a bridge?", "What happened at sea?", "Which trees and plants were there?")
ENDPOINT, MODEL = "/v1/embeddings", os.environ["EMBED_MODEL"]


def tokenised(folder: Path, count: int, tokenizer: Tokenizer) -> list[Path]:
    """Shards of documents with their token ids."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    documents, paths = notes(count), []
    while rows := list(islice(documents, SHARD_ROWS)):
        table = pa.Table.from_pylist(rows)
        # All cores work on it.
        encoded = tokenizer.encode_batch_fast(table["text"].to_pylist())
        table = table.append_column("ids", pa.array([one.ids for one in encoded]))
        paths.append(folder / f"part-{len(paths):05d}.parquet")
        pq.write_table(table, paths[-1])
    return paths


async def embedded(shards: list[Path], folder: Path) -> list[Path]:
    """The same shards with their vectors. Begun again, it takes up the same batches."""
    turns = asyncio.Semaphore(AT_A_TIME)

    async def embed(shard: Path) -> Path:
        target = folder / shard.name
        async with turns:
            table = await batchyard.arun(
                shard,
                "{{ ids }}",
                endpoint=ENDPOINT,
                model=MODEL,
                columns=["embedding", "input_tokens", "error"],
                progress=False,
            )
        pq.write_table(table, target)
        return target

    return await asyncio.gather(*map(embed, shards))


def nearest(shards: list[Path], vectors: np.ndarray, limit: int) -> list[list[tuple[float, str]]]:
    """The most similar documents to each vector. Holds one shard in memory at a time."""
    found: list[list[tuple[float, str]]] = [[] for _ in vectors]
    for shard in shards:
        table = pq.read_table(shard, columns=["text", "embedding"]).drop_null()
        texts, similar = table["text"], vectors @ matrix(table["embedding"]).T
        for place, row in enumerate(similar):
            best = np.argpartition(row, -limit)[-limit:] if len(row) > limit else range(len(row))
            found[place] += [(float(row[one]), str(texts[int(one)])) for one in best]
            found[place] = sorted(found[place], reverse=True)[:limit]
    return found


def matrix(column: pa.ChunkedArray) -> np.ndarray:
    """The vectors of a column as rows of length 1."""
    rows = column.combine_chunks().flatten().to_numpy().reshape(len(column), -1)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def main(folder: Path, count: int, tokenizer: Tokenizer) -> None:
    for name in ("tokenised", "embedded"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    shards = tokenised(folder / "tokenised", count, tokenizer)
    print(f"{count} documents in {len(shards)} shards, tokenised after {_since(began)} s")
    vectors = asyncio.run(embedded(shards, folder / "embedded"))
    read = [pq.read_table(one, columns=["input_tokens", "error"]) for one in vectors]
    tokens = sum(table["input_tokens"].to_numpy().sum() for table in read)
    failed = sum(len(table) - table["error"].null_count for table in read)
    print(f"{tokens:.0f} tokens embedded after {_since(began)} s, {failed} documents failed")
    asked = batchyard.run(
        pa.table({"text": QUESTIONS}), "{{ text }}", endpoint=ENDPOINT, model=MODEL, progress=False
    )
    found = nearest(vectors, matrix(asked["embedding"]), 3)
    print(f"searched after {_since(began)} s")
    for question, texts in zip(QUESTIONS, found, strict=True):
        print(question)
        for similarity, text in texts:
            print(f"  {similarity:.2f}  {text}")


def _since(began: float) -> str:
    return f"{time.perf_counter() - began:.1f}"


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=Path)
parser.add_argument("documents", nargs="?", type=int, default=200_000)
parser.add_argument("--tokenizer", type=Path, required=True, help="the model's tokenizer.json")
given = parser.parse_args()
main(given.folder, given.documents, Tokenizer.from_file(str(given.tokenizer)))
