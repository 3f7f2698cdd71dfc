import pytest

from shared.openai.endpoints import ENDPOINTS, GENERATING, POOLING, endpoints_of


def test_every_endpoint_is_for_models_that_write_or_for_models_that_give_numbers() -> None:
    assert {*ENDPOINTS} == {*endpoints_of(GENERATING), *endpoints_of(POOLING)}
    assert not {*endpoints_of(GENERATING)} & {*endpoints_of(POOLING)}


def test_only_endpoints_that_write_have_output() -> None:
    writing = [one.path for one in ENDPOINTS.values() if one.has_output]
    assert [*endpoints_of(GENERATING)] == writing


def test_a_reranker_gives_no_embeddings_and_a_classifier_scores_no_pairs() -> None:
    reranker, classifier = endpoints_of(["rerank"]), endpoints_of(["classify"])

    assert {"/score", "/v1/rerank", "/classify", "/pooling"} < {*reranker}
    assert "/v1/embeddings" not in reranker
    assert {*endpoints_of(["transcription"])} == {
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
    }
    assert {*classifier} == {"/classify", "/pooling", "/v1/moderations"}


@pytest.mark.parametrize(
    ("path", "body", "prompts"),
    [
        ("/v1/chat/completions", {"messages": [{}, {}]}, 1),
        ("/v1/embeddings", {"input": ["a", "b"]}, 2),
        ("/v1/embeddings", {"input": [1, 2, 3]}, 1),
        ("/v1/embeddings", {"input": "a", "messages": [[{}], [{}], [{}]]}, 3),
        ("/rerank", {"query": "a", "documents": ["b"] * 5}, 5),
        ("/rerank", {"query": "a", "documents": "b"}, 1),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c", "d"]}, 2),
        ("/score", {"queries": "a", "documents": []}, 1),
        ("/score", {}, 1),
    ],
)
def test_a_body_has_as_many_prompts_as_the_engine_makes_of_it(
    path: str, body: dict[str, object], prompts: int
) -> None:
    assert ENDPOINTS[path].prompts(body) == prompts


def test_the_one_side_of_pairs_is_repeated() -> None:
    score = ENDPOINTS["/score"]

    assert score.repeated({"text_1": "a", "text_2": ["b", "c"]}) == "a"
    assert score.repeated({"data_1": ["a"], "data_2": ["b", "c"]}) == "a"
    assert score.repeated({"queries": ["a", "b"], "items": ["c", "d"]}) is None
    assert ENDPOINTS["/v1/embeddings"].repeated({"input": "a"}) is None
