from pathlib import Path

import pytest

from cli.client.contexts import Target
from cli.client.gateway import Gateway
from cli.client.runs import Runs
from cli.client.submission import BatchOptions
from shared.errors import InvalidInputError


@pytest.mark.parametrize("output", ["in.jsonl", "./in.jsonl", "link.jsonl", "."])
def test_results_never_replace_their_input(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text("{}")
    Path("link.jsonl").symlink_to("in.jsonl")
    gateway = Gateway(Target("none", "http://127.0.0.1:1/v1", "sk-none"), patience=0)
    options = BatchOptions("/v1/chat/completions")
    runs = Runs(gateway, options, order="input", output=Path(output), is_new=False)

    with pytest.raises(InvalidInputError, match="would replace the inputs"):
        runs.run([Path("in.jsonl")])
