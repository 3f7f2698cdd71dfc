import pytest
import yaml

from cli.catalog_edit import NoPlaceError, with_values

BLOCK = """\
# ours
pools:
  cpu: {resources: {CPU: 1}}   # two of them
models:
  other: {pools: [cpu]}
  # the chat model
  chat:
    pools: [cpu]
    engine:
      # measured
      max_num_seqs: 64   # seats
      enforce_eager: true
"""
VALUES = {
    ("engine", "max_num_seqs"): 512,
    ("engine", "max_num_batched_tokens"): 4096,
    ("fronts",): 2,
}


def test_values_take_the_place_of_those_that_are_there_and_all_else_stays() -> None:
    text = with_values(BLOCK, "chat", VALUES, "best of 3")

    entry = yaml.safe_load(text)["models"]["chat"]
    assert entry == {
        "pools": ["cpu"],
        "fronts": 2,
        "engine": {"max_num_seqs": 512, "enforce_eager": True, "max_num_batched_tokens": 4096},
    }
    assert [line for line in BLOCK.splitlines() if line not in text.splitlines()] == [
        "      max_num_seqs: 64   # seats"
    ]
    assert "      max_num_seqs: 512   # seats\n" in text
    assert "  # tuned: best of 3\n  chat:\n" in text


def test_a_note_takes_the_place_of_the_one_before() -> None:
    text = with_values(BLOCK, "chat", VALUES, "first")

    again = with_values(text, "chat", VALUES, "second")

    assert again == text.replace("# tuned: first", "# tuned: second")


@pytest.mark.parametrize(
    "entry", ["{pools: [cpu], engine: {dtype: float32}}", "{pools: [cpu], engine: {}}",
              "{pools: [cpu]}", "\n    pools: [cpu]\n"]
)  # fmt: skip
def test_an_entry_of_any_form_takes_values(entry: str) -> None:
    before = f"pools:\n  cpu: {{}}\nmodels:\n  chat: {entry}\n"

    found = yaml.safe_load(with_values(before, "chat", VALUES, "n"))["models"]["chat"]

    assert found["engine"].items() >= {"max_num_seqs": 512, "max_num_batched_tokens": 4096}.items()
    assert found["fronts"] == 2


@pytest.mark.parametrize("text", ["models: {}", "models:\n  chat:\n", "models:\n  chat: 7\n"])
def test_what_is_no_entry_takes_none(text: str) -> None:
    with pytest.raises(NoPlaceError):
        with_values(text, "chat", VALUES, "n")
