"""The rights of lane jobs at Redis, as far as they can be told without Redis."""

import re
from pathlib import Path

from shared.state.access import LANE_SCRIPTS, lane_rules
from shared.state.script_texts import texts
from shared.state.state import NAMESPACE

_ROOT = Path(__file__).parents[4]
#: What the lane job and its waves call of `State`, by noun.
_USED = re.compile(r"state\.(claims|doors|engines|lanes)\.(\w+)\(")
_METHOD = re.compile(r"    async def (\w+)\(.*?(?=\n    async def |\n    def |\Z)", re.DOTALL)
_SCRIPT = re.compile(r"(?:_scripts\.run|_positions)\(\s*\"(\w+)\"")


def test_the_file_of_rights_is_what_the_code_says() -> None:
    written = (_ROOT / "k8s/base/lane.acl").read_text()

    assert written == f"{lane_rules(NAMESPACE)}\n", "run make docs"


def test_each_script_that_workers_run_is_allowed_and_no_other() -> None:
    scripts: dict[tuple[str, str], list[str]] = {}
    for noun in ("claims", "doors", "engines", "lanes"):
        text = (_ROOT / f"shared/state/{noun}.py").read_text()
        for method in _METHOD.finditer(text):
            scripts[noun, method[1]] = _SCRIPT.findall(method[0])
    code = "".join(path.read_text() for path in (_ROOT / "worker").glob("*.py"))

    used = {script for call in _USED.findall(code) for script in scripts.get(call, [])}

    assert used == set(LANE_SCRIPTS)
    assert used <= texts().keys()


def test_neither_keys_nor_webhooks_nor_files_are_among_the_rights() -> None:
    allowed = [word for word in lane_rules(NAMESPACE).split() if "~" in word]

    assert not [
        word for word in allowed for name in ("key", "webhook", "file", "upload") if name in word
    ]
