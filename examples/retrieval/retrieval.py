"""retrieval.py TEXT FOLDER [QUESTION]: chunk, embed, cluster and name a text; then ask it."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import batchyard

CHUNK_WORDS, OVERLAP_WORDS = 30, 8
CLUSTERS = 6
NEAREST = 4
CHAT, EMBEDDER = os.environ["CHAT_MODEL"], os.environ["EMBED_MODEL"]
NAME = "Give these passages a common title of one to four words.\n\n{{ passages }}"
ANSWER = (
    "Answer in one sentence, from these passages alone. Say so if they have no answer.\n\n"
    "{{ passages }}\n\nQuestion: {{ question }}"
)


def chunks(text: str) -> pl.DataFrame:
    """Pieces of the text's sections, each of so many words; the next one begins inside the last."""
    rows = []
    for section in text.split("# ")[1:]:
        heading, _, body = section.partition("\n")
        words = body.split()
        for start in range(0, max(1, len(words) - OVERLAP_WORDS), CHUNK_WORDS - OVERLAP_WORDS):
            passage = " ".join(words[start : start + CHUNK_WORDS])
            rows.append({"id": len(rows), "section": heading, "text": f"{heading}: {passage}"})
    return pl.DataFrame(rows)


def embedded(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with a column `embedding`."""
    return batchyard.run(
        rows,
        "{{ text }}",
        endpoint="/v1/embeddings",
        model=EMBEDDER,
        columns=["embedding"],
        check=True,
        progress=False,
    )


def clustered(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cluster of each vector, and the clusters' centres: k-means on directions."""
    # Each centre begins at the vector that is farthest from those before.
    centres = vectors[:1]
    while len(centres) < min(CLUSTERS, len(vectors)):
        farthest = (vectors @ centres.T).max(axis=1).argmin()
        centres = np.vstack([centres, vectors[farthest]])
    for _ in range(50):
        clusters = (vectors @ centres.T).argmax(axis=1)
        sums = [vectors[clusters == one].sum(axis=0) for one in range(len(centres))]
        # One that has lost all of its vectors stays where it is.
        moved = [new if new.any() else old for new, old in zip(sums, centres, strict=True)]
        centres = _directions(np.array(moved))
    return clusters, centres


def asked(rows: list[dict[str, Any]], prompt: str, tokens: int) -> list[str]:
    """The chat model's answer to each row."""
    body = {"max_tokens": tokens, "temperature": 0}
    answers = batchyard.run(rows, prompt, model=CHAT, body=body, check=True, progress=False)
    return [" ".join(row["answer"].split()) for row in answers]


def main(source: Path, folder: Path, question: str) -> None:
    index = embedded(chunks(source.read_text(encoding="utf-8")))
    vectors = _directions(index["embedding"].to_numpy())
    clusters, centres = clustered(vectors)
    near = (centres @ vectors.T).argsort(axis=1)[:, :-4:-1]
    names = asked([{"passages": _joined(index, places)} for places in near], NAME, 12)
    index = index.with_columns(cluster=pl.Series(clusters), name=pl.Series(names).gather(clusters))
    index.write_parquet(folder / "index.parquet")
    for number, name in enumerate(names):
        members = index.filter(pl.col("cluster") == number)
        print(f"{len(members):3} chunks of {', '.join(members['section'].unique().sort())}: {name}")

    wanted = _directions(embedded(pl.DataFrame({"text": [question]}))["embedding"].to_numpy())
    places = (vectors @ wanted[0]).argsort()[: -NEAREST - 1 : -1]
    [answer] = asked([{"passages": _joined(index, places), "question": question}], ANSWER, 40)
    print(f"\n{question}\nfrom {', '.join(index['section'].gather(places).unique().sort())}")
    print(answer)


def _directions(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _joined(index: pl.DataFrame, places: np.ndarray) -> str:
    return "\n\n".join(index["text"].gather(places))


source, folder, *words = sys.argv[1:]
main(Path(source), Path(folder), " ".join(words) or "Do I get my money back if a storm comes?")
