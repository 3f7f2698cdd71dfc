import pytest

from shared.catalog import Moderation
from shared.openai.bodies import Refusal, read_body
from shared.openai.bodies.moderation import ModerationBody
from worker.moderations import moderated

_LABELS = {0: "Safe", 1: "hate", 2: "violence"}


def _answer(*scores: list[float]) -> dict[str, object]:
    data = [{"index": number, "probs": probs} for number, probs in enumerate(scores)]
    return {"id": "classify-1", "model": "m", "data": data, "usage": {"prompt_tokens": 3}}


def test_each_label_that_means_harm_is_a_category() -> None:
    found = moderated(_answer([0.9, 0.4, 0.1], [0.1, 0.2, 0.7]), _LABELS, Moderation())

    assert (found["id"], found["model"], found["usage"]) == ("modr-1", "m", {"prompt_tokens": 3})
    assert found["results"] == [
        {
            "flagged": False,
            "categories": {"hate": False, "violence": False},
            "category_scores": {"hate": 0.4, "violence": 0.1},
            "category_applied_input_types": {"hate": ["text"], "violence": ["text"]},
        },
        {
            "flagged": True,
            "categories": {"hate": False, "violence": True},
            "category_scores": {"hate": 0.2, "violence": 0.7},
            "category_applied_input_types": {"hate": ["text"], "violence": ["text"]},
        },
    ]


def test_the_operator_says_what_is_harmless_and_how_sure_the_model_has_to_be() -> None:
    moderation = Moderation(threshold=0.4, harmless=("VIOLENCE",))

    [found] = moderated(_answer([0.3, 0.4, 0.9]), _LABELS, moderation)["results"]

    assert found["categories"] == {"Safe": False, "hate": True}


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        # The engine refuses it.
        ([], []),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], ["one\ntwo"]),
    ],
)
def test_strings_are_judged_one_by_one_and_parts_together(given: object, texts: list[str]) -> None:
    body = read_body(ModerationBody, {"model": "m", "input": given})

    assert isinstance(body, ModerationBody)
    assert body.as_classification()["input"] == texts


@pytest.mark.parametrize(
    "given",
    ["", 5, [[1, 2]], [{"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}}]],
)
def test_what_no_classifier_of_texts_can_read_is_refused(given: object) -> None:
    body = read_body(ModerationBody, {"model": "m", "input": given})

    assert isinstance(body, Refusal)
    assert (body.param or "").startswith("input")
