"""sentiment.py [FOLDER] [POSTS]: judge posts, and leave a Parquet file and a picture."""

import os
import sys
from pathlib import Path
from typing import Literal

import polars as pl
from chart import chart
from posts import posts
from pydantic import BaseModel

import batchyard

ASK = (
    "Is this post about a {{ product }} positive, negative or neutral? Say also whether its writer "
    "has a defect to report.\n\n{{ text }}"
)


class Verdict(BaseModel):
    """What the engine writes about a post, and nothing else."""

    sentiment: Literal["positive", "neutral", "negative"]
    defect: bool


def main(folder: Path, count: int) -> None:
    rows = pl.DataFrame(posts(count))
    judged = batchyard.run(
        rows,
        ASK,
        schema=Verdict,
        model=os.environ["CHAT_MODEL"],
        body={"max_tokens": 40, "temperature": 0},
    )
    failed = judged.filter(pl.col("error_code").is_not_null())
    judged.write_parquet(folder / "sentiment.parquet")
    shares = (
        judged.drop_nulls("sentiment")
        .pivot("sentiment", index="product", values="id", aggregate_function="len")
        .fill_null(0)
        .sort("product")
    )
    (folder / "sentiment.svg").write_text(chart(shares.to_dicts(), key="product"))
    print(f"{len(judged)} posts, {len(failed)} without a verdict")
    print(shares)


folder, *count = sys.argv[1:] or ["."]
main(Path(folder), int(count[0]) if count else 3000)
