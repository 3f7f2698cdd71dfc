"""Embeddings, scores, rankings and classes. Pure."""

from typing import Any

from tests.engine.compatibility.line import (
    CHAT,
    EMBEDDER,
    EMBEDDINGS,
    HI,
    JUDGE,
    WRITER,
    Line,
    embedding,
    judged,
)

_FOUR = ["a train leaves", "reset my password", "", "é\u2028 trains"]
_PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]


def _score(feature: str, name: str, path: str = "/score", **fields: Any) -> Line:
    return judged(feature, name, path, **fields)


def _rerank(feature: str, name: str, path: str = "/rerank", **fields: Any) -> Line:
    return judged(feature, name, path, **{"query": "trains", "documents": _FOUR, **fields})


def _classify(feature: str, name: str, **fields: Any) -> Line:
    return judged(feature, name, "/classify", **{"input": "a train", **fields})


def _pooling(feature: str, name: str, engine: str = JUDGE, **fields: Any) -> Line:
    body = {"model": engine, "input": "a train", **fields}
    kept = {name: value for name, value in body.items() if value is not ...}
    return Line(engine, feature, name, "/pooling", kept)


_EMBEDDINGS = (
    embedding("inputs", "a text"),
    embedding("inputs", "several texts", input=["reset", "forgot my login", "a train\u2028é"]),
    embedding("inputs", "token ids", input=[101, 2653, 102]),
    embedding("inputs", "lists of token ids", input=[[101, 102], [101, 2653, 102]]),
    embedding("inputs", "token ids as text", input=[1, "2", 3.0]),
    embedding("inputs", "token ids beyond the vocabulary", input=[10**7]),
    embedding("inputs", "an empty text", input=""),
    embedding("inputs", "an empty list", input=[]),
    embedding("inputs", "empty among others", input=["a", ""]),
    embedding("inputs", "missing", input=...),
    embedding("inputs", "null", input=None),
    embedding("inputs", "an object", input={"a": 1}),
    embedding("inputs", "texts and numbers", input=["a", 5]),
    embedding("inputs", "a conversation", input=..., messages=HI),
    embedding("inputs", "both", messages=HI),
    embedding("inputs", "messages as the input", input=HI),
    embedding("inputs", "half a surrogate pair", input="cut \ud83d"),
    embedding("long and wide", "20 texts", input=[f"train {number}" for number in range(20)]),
    embedding("long and wide", "longer than the model takes", input="train " * 2000),
    embedding("long and wide", "one of them too long", input=["a", "train " * 2000]),
    embedding("long and wide", "cut", input="train " * 2000, truncate_prompt_tokens=64),
    embedding("long and wide", "cut to what the model takes", input="train " * 2000,
              truncate_prompt_tokens=-1),
    embedding("long and wide", "cut on the left", input="a b c " * 400, truncate_prompt_tokens=16,
              truncation_side="left"),
    embedding("long and wide", "cut to more than the model", truncate_prompt_tokens=10**5),
    *(
        embedding("encodings", f"{encoding} of {dtype}, {ends}", encoding_format=encoding,
                  embed_dtype=dtype, endianness=ends)
        for encoding in ("float", "base64")
        for dtype in ("float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2")
        for ends in ("native", "big", "little")
    ),
    embedding("encodings", "as bytes", encoding_format="bytes"),
    embedding("encodings", "as bytes alone", encoding_format="bytes_only"),
    embedding("encodings", "base64", encoding_format="base64"),
    embedding("encodings", "unknown", encoding_format="binary"),
    embedding("encodings", "null", encoding_format=None),
    embedding("encodings", "of an unknown type", encoding_format="base64", embed_dtype="int7"),
    embedding("dimensions", "8", dimensions=8),
    embedding("dimensions", "64 in base64", dimensions=64, encoding_format="base64"),
    embedding("dimensions", "all", dimensions=384),
    embedding("dimensions", "that the model lacks", dimensions=10),
    embedding("dimensions", "more than there are", dimensions=4096),
    embedding("dimensions", "none", dimensions=0),
    embedding("dimensions", "as text", dimensions="8"),
    embedding("dimensions", "half", dimensions=8.5),
    embedding("dimensions", "null", dimensions=None),
    embedding("normalisation", "off", use_activation=False),
    embedding("normalisation", "by its former name", normalize=False),
    embedding("normalisation", "of 8 dimensions", dimensions=8, use_activation=False),
    embedding("models", "unknown", model="no-such-model"),
    embedding("models", "missing", model=...),
    embedding("models", "of one that writes", model=WRITER),
    Line(EMBEDDER, "models", "a chat with it", CHAT,
         {"model": EMBEDDER, "messages": HI, "max_tokens": 4}),
    Line(JUDGE, "models", "of a classifier", EMBEDDINGS, {"model": JUDGE, "input": "x"}),
    Line(WRITER, "models", "an embedding of one that writes", EMBEDDINGS,
         {"model": WRITER, "input": "x"}),
    embedding("unknown fields", "a user", user="u"),
    embedding("unknown fields", "one", unheard_of=1),
    embedding("unknown fields", "a stream", stream=True),
)  # fmt: skip

_SCORES = (
    _score("pairs", "one", queries="trains", documents="a train leaves"),
    _score("pairs", "one with many", text_1="trains", text_2=_FOUR[:2]),
    _score("pairs", "many with many", data_1=["a", "b"], data_2=["c", "d"]),
    _score("pairs", "many with fewer", data_1=["a", "b", "c"], data_2=["d", "e"]),
    _score("pairs", "items", queries="trains", items=["a train leaves"]),
    _score("pairs", "under /v1", "/v1/score", queries="a", documents=["b"]),
    _score("pairs", "no documents", queries="a", documents=[]),
    _score("pairs", "one side", queries="a"),
    _score("pairs", "neither side"),
    _score("pairs", "of two forms", text_1="a", documents="b"),
    _score("pairs", "numbers", queries=1, documents=[2]),
    _score("pairs", "empty texts", queries="", documents=[""]),
    _score("pairs", "token ids", queries=[5, 6], documents=[[7]]),
    _score("pairs", "half a surrogate pair", queries="\ud83d", documents="b"),
    _score("pairs", "parts of text", queries="a",
           documents={"content": [{"type": "text", "text": "b"}]}),
    _score("pairs", "a picture", queries="a", documents={"content": _PICTURE}),
    _score("long and wide", "one with 40", queries="a", documents=[f"b {n}" for n in range(40)]),
    _score("long and wide", "longer than the model takes", queries="a", documents="train " * 3000),
    _score("long and wide", "cut", queries="a", documents="train " * 3000,
           truncate_prompt_tokens=64),
    _score("long and wide", "each document cut", queries="a", documents=["train " * 300, "b"],
           max_tokens_per_doc=8),
    _score("activation", "off", queries="a", documents=["b"], use_activation=False),
    _score("activation", "perhaps", queries="a", documents=["b"], use_activation="perhaps"),
    _score("activation", "an instruction", queries="a", documents=["b"], instruction="Compare."),
    _score("models", "unknown", model="nobody", queries="a", documents="b"),
    _score("models", "of embeddings", model=EMBEDDER, queries="a", documents="b"),
    _score("unknown fields", "one", queries="a", documents="b", unheard_of=1),
    Line(EMBEDDER, "pairs", "by a model of embeddings", "/score",
         {"model": EMBEDDER, "queries": "login", "documents": ["a", "b"]}),
    Line(WRITER, "models", "by one that writes", "/score",
         {"model": WRITER, "queries": "login", "documents": ["a", "b"]}),
)  # fmt: skip

_RANKINGS = (
    _rerank("documents", "in order"),
    _rerank("documents", "one", documents="a train leaves"),
    _rerank("documents", "none", documents=[]),
    _rerank("documents", "missing", documents=...),
    _rerank("documents", "objects", documents=[{"text": "a"}]),
    _rerank("documents", "parts", documents={"content": [{"type": "text", "text": "b"}]}),
    _rerank("documents", "the same twice", documents=["a", "a"]),
    _rerank("documents", "under /v1", "/v1/rerank"),
    _rerank("documents", "under /v2", "/v2/rerank"),
    _rerank("documents", "no query", query=...),
    _rerank("documents", "an empty query", query=""),
    _rerank("documents", "several queries", query=["a", "b"]),
    _rerank("documents", "half a surrogate pair", query="\ud83d"),
    _rerank("top_n", "two", top_n=2),
    _rerank("top_n", "none", top_n=0),
    _rerank("top_n", "more than there are", top_n=9),
    _rerank("top_n", "less than none", top_n=-1),
    _rerank("top_n", "as text", top_n="2"),
    _rerank("long and wide", "60 documents", documents=[f"train {n}" for n in range(60)]),
    _rerank("long and wide", "longer than the model takes", documents=["a", "train " * 3000]),
    _rerank("long and wide", "each document cut", documents=["train " * 300, "b"],
            max_tokens_per_doc=8),
    _rerank("unknown fields", "return_documents", return_documents=True),
    _rerank("unknown fields", "one", unheard_of=1),
    _rerank("models", "unknown", model="nobody"),
    Line(EMBEDDER, "documents", "by a model of embeddings", "/rerank",
         {"model": EMBEDDER, "query": "login", "documents": ["password", "train"]}),
)  # fmt: skip

_CLASSES = (
    _classify("inputs", "a text"),
    _classify("inputs", "several texts", input=["a train", "a password"]),
    _classify("inputs", "token ids", input=[5, 6, 7]),
    _classify("inputs", "lists of token ids", input=[[5, 6], [7]]),
    _classify("inputs", "a conversation", input=..., messages=HI),
    _classify("inputs", "missing", input=...),
    _classify("inputs", "an empty text", input=""),
    _classify("inputs", "an empty list", input=[]),
    _classify("inputs", "a number", input=5),
    _classify("inputs", "half a surrogate pair", input="\ud83d"),
    _classify("long and wide", "longer than the model takes", input="train " * 3000),
    _classify("long and wide", "cut", input="train " * 3000, truncate_prompt_tokens=16),
    _classify("activation", "off", use_activation=False),
    _classify("unknown fields", "one", unheard_of=1),
    Line(EMBEDDER, "models", "by a model of embeddings", "/classify",
         {"model": EMBEDDER, "input": "login"}),
    _pooling("inputs", "a text"),
    _pooling("inputs", "several texts", input=["a", "b"]),
    _pooling("inputs", "a conversation", input=..., messages=HI),
    _pooling("inputs", "token ids", input=[5, 6, 7]),
    _pooling("inputs", "missing", input=...),
    _pooling("inputs", "a number", input=5),
    _pooling("inputs", "data for a plugin", input=..., data={"a": 1}),
    _pooling("tasks", "classify", task="classify"),
    _pooling("tasks", "token_classify", task="token_classify"),
    _pooling("tasks", "embed of a classifier", task="embed"),
    _pooling("tasks", "score", task="score"),
    _pooling("tasks", "a number", task=5),
    _pooling("encodings", "base64", encoding_format="base64"),
    _pooling("encodings", "base64 of float16", encoding_format="base64", embed_dtype="float16"),
    _pooling("encodings", "as bytes", encoding_format="bytes"),
    _pooling("encodings", "unknown", encoding_format="binary"),
    _pooling("activation", "off", use_activation=False),
    _pooling("dimensions", "of a classifier", dimensions=8),
    _pooling("models", "unknown", model="nobody"),
    _pooling("inputs", "of a model of embeddings", EMBEDDER),
    _pooling("tasks", "embed", EMBEDDER, task="embed"),
    _pooling("tasks", "token_embed", EMBEDDER, task="token_embed"),
    _pooling("dimensions", "8", EMBEDDER, dimensions=8),
    _pooling("encodings", "base64 of embeddings", EMBEDDER, encoding_format="base64"),
)  # fmt: skip

LINES: tuple[Line, ...] = (*_EMBEDDINGS, *_SCORES, *_RANKINGS, *_CLASSES)
