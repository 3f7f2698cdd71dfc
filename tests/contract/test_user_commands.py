"""The users' commands against a real gateway and dispatcher, as processes."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from cli.client.uploads import PART_BYTES
from shared.scopes import Scope
from tests.contract.conftest import EMBEDDER, MODEL, OTHER_MODEL, Caller, custom_ids, row, rows
from tests.contract.engine import REFUSE, WAIT
from tests.contract.receiver import Receiver
from tests.contract.user_commands import Command, on_terminal, running_batch
from tests.eventually import wait_until

_MB = 1024 * 1024


@pytest.fixture
def batchyard(acme: Caller, tmp_path: Path) -> Command:
    return Command(acme, tmp_path)


def _ids(text: str) -> list[str]:
    return [json.loads(line)["custom_id"] for line in text.splitlines()]


def test_run_prints_all_results_in_input_order(acme: Caller, batchyard: Command) -> None:
    batchyard.file("in.jsonl", rows("a", "b", "c", "d", "e"))

    ended = batchyard("run", "in.jsonl")

    assert (ended.code, _ids(ended.out)) == (0, custom_ids(5)), ended.err
    assert "in.jsonl: completed, 5/5 rows" in ended.err
    assert acme.key not in ended.err


def test_run_writes_the_tables_that_the_template_asks_for(batchyard: Command) -> None:
    template = {
        "endpoint": "/v1/chat/completions",
        "carry": ["word"],
        "template": {"model": MODEL, "messages": [{"role": "user", "content": "{{ word }}"}]},
        "output": {"format": "jsonl", "columns": ["input.word", "answer"]},
    }
    batchyard.file("ask.json", json.dumps(template).encode())
    del template["output"]
    batchyard.file("bare.json", json.dumps(template).encode())
    batchyard.file("a.csv", b"word\nyard\n")
    batchyard.file("b.csv", b"word\nhump\n")
    (batchyard.folder / "out").mkdir()

    one = batchyard("run", "a.csv", "--template", "ask.json", "--table")
    both = batchyard("run", "a.csv", "b.csv", "--template", "ask.json", "--table", "-o", "out")
    said = json.dumps([{"role": "user", "content": "{{ word }}!"}])
    ask = ("--template", "ask.json", "--set", f"messages={said}")
    other = batchyard("run", "a.csv", *ask, "--model", OTHER_MODEL, "--table")
    none = batchyard("run", "a.csv", "--template", "bare.json", "--table")

    assert (one.code, one.records()) == (0, [{"word": "yard", "answer": "YARD"}]), one.err
    assert (other.code, other.records()) == (0, [{"word": "yard", "answer": "YARD!"}]), other.err
    assert [one["model"] for one in batchyard("ls", "--json").records()].count(OTHER_MODEL) == 1
    assert both.code == 0, both.err
    assert [json.loads((batchyard.folder / f"out/{name}.jsonl").read_text()) for name in "ab"] == [
        {"word": "yard", "answer": "YARD"},
        {"word": "hump", "answer": "HUMP"},
    ]
    assert (none.code, none.out) == (2, "")
    assert "'output'" in none.err


def test_run_needs_nothing_but_the_dependencies_of_the_command(
    acme: Caller, tmp_path: Path
) -> None:
    alone = Command(acme, tmp_path, module="tests.alone")
    alone.file("in.jsonl", rows("a", "b"))

    ended = alone("run", "in.jsonl")
    of_operators = alone("keys", "list")

    assert (ended.code, _ids(ended.out)) == (0, custom_ids(2)), ended.err
    assert of_operators.code == 2
    assert "pip install 'batchyard[cli]'" in of_operators.err


def test_three_failed_rows_of_ten_are_exit_code_3_and_can_be_fetched_alone(
    batchyard: Command,
) -> None:
    batchyard.file("in.jsonl", rows(*["ok"] * 4, *[REFUSE] * 3, *["ok"] * 3))

    ended = batchyard("run", "in.jsonl")
    [batch] = batchyard("ls").records()
    failed = batchyard("fetch", batch["id"], "--failed")

    assert (ended.code, _ids(ended.out)) == (3, custom_ids(10)), ended.err
    assert f"batchyard retry {batch['id']}" in ended.err
    assert (failed.code, _ids(failed.out)) == (3, ["row-4", "row-5", "row-6"])
    retried = batchyard("retry", batch["id"], "--rows", "failed", "--wait")
    assert retried.code == 3
    assert retried.records()[0]["request_counts"]["total"] == 3


def test_a_batch_that_fails_is_exit_code_4_with_its_lines(batchyard: Command) -> None:
    batchyard.file("in.jsonl", row("a") + row("a"))

    ended = batchyard("run", "in.jsonl")
    checked = batchyard("check", "in.jsonl")

    assert (ended.code, ended.out) == (4, "")
    assert "line 2: The custom_id 'a' for this request is a duplicate" in ended.err
    # Without a server, in the same words.
    [report] = checked.records()
    assert checked.code == 4
    assert report["errors"][0]["message"] in ended.err


def test_the_same_run_again_takes_up_the_same_batch(acme: Caller, batchyard: Command) -> None:
    batchyard.file("in.jsonl", rows("a", "b", "c"))

    first = batchyard("run", "in.jsonl")
    second = batchyard("run", "in.jsonl")
    other = batchyard("run", "in.jsonl", "--priority", "7")
    again = batchyard("run", "in.jsonl", "--again")

    assert [first.code, second.code, other.code, again.code] == [0, 0, 0, 0]
    assert first.out == second.out
    assert "this file was run before" in second.err
    assert "this file was run before" not in other.err + again.err
    assert len(batchyard("ls").records()) == 3
    # The second run has not sent the file again.
    assert len(batchyard("files", "ls", "--purpose", "batch").records()) == 3


def test_a_run_that_was_killed_is_taken_up(acme: Caller, batchyard: Command) -> None:
    batchyard.file("in.jsonl", rows("a", "b", "c", "d", WAIT, "f"))
    killed = batchyard.start("run", "in.jsonl", "-o", "out.jsonl")
    batch = running_batch(acme, done=4)
    killed.kill()
    batchyard.end(killed)

    acme.yard.engine.release(batch["id"])
    ended = batchyard("run", "in.jsonl", "-o", "out.jsonl")

    assert ended.code == 0, ended.err
    assert f"Taking up {batch['id']}" in ended.err
    assert _ids((batchyard.folder / "out.jsonl").read_text()) == custom_ids(6)
    assert [path.name for path in batchyard.folder.glob(".out*")] == []
    assert len(batchyard("ls").records()) == 1


def test_the_same_run_beside_the_first_leaves_its_file_alone(
    acme: Caller, batchyard: Command
) -> None:
    batchyard.file("in.jsonl", rows("a", "b", "c", "d", WAIT, "f"))
    first = batchyard.start("run", "in.jsonl", "-o", "out.jsonl")
    batch = running_batch(acme, done=4)

    second = batchyard("run", "in.jsonl", "-o", "out.jsonl")

    assert second.code == 2
    assert "out.jsonl: another command is writing it" in second.err
    acme.yard.engine.release(batch["id"])
    assert batchyard.end(first).code == 0
    assert _ids((batchyard.folder / "out.jsonl").read_text()) == custom_ids(6)


def test_watch_outlives_a_restart_of_the_gateway(acme: Caller, batchyard: Command) -> None:
    batch = acme.create(rows("a", "b", WAIT, "d"))
    watching = batchyard.start("watch", batch["id"])
    running_batch(acme, done=2)

    acme.yard.gateway.restart()
    acme.yard.gateway.wait()
    acme.yard.engine.release(batch["id"])
    ended = batchyard.end(watching)

    assert ended.code == 0, ended.err
    assert ended.records()[-1]["status"] == "completed"


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_in_a_pipe_a_signal_leaves_the_batch_running(
    acme: Caller, batchyard: Command, sign: signal.Signals
) -> None:
    batchyard.file("in.jsonl", rows(WAIT))
    process = batchyard.start("run", "in.jsonl")
    batch = running_batch(acme)
    assert process.stderr is not None
    # It says so once it waits.
    assert batch["id"] in process.stderr.readline()

    process.send_signal(sign)
    ended = batchyard.end(process)

    assert ended.code == 128 + sign
    assert f"batchyard watch {batch['id']}" in ended.err
    assert acme.batch(batch["id"])["status"] == "in_progress"


@pytest.mark.parametrize(("answer", "status"), [("c\n", "cancelled"), ("l\n", "in_progress")])
def test_on_a_terminal_ctrl_c_asks_what_becomes_of_the_batch(
    acme: Caller, batchyard: Command, answer: str, status: str
) -> None:
    batchyard.file("in.jsonl", rows("a", "b", WAIT))
    out = batchyard.folder / "out"
    with on_terminal(batchyard, "run", "in.jsonl", out=out) as terminal:
        batch = running_batch(acme, done=2)
        terminal.until("2/3 rows")
        wait_until(lambda: out.read_bytes().count(b"\n") == 2)

        terminal.press("\x03")
        terminal.until("[c]ancel, [L]eave")
        terminal.press(answer)

        assert terminal.end() == 130
    assert acme.until(batch["id"], status)["status"] == status
    assert _ids(out.read_text()) == ["row-0", "row-1"]


def test_fetch_takes_what_there_is_only_if_asked_to(acme: Caller, batchyard: Command) -> None:
    batch = acme.create(rows("a", REFUSE, WAIT, "d"))
    running_batch(acme, done=1)

    refused = batchyard("fetch", batch["id"])
    partial = batchyard("fetch", batch["id"], "--partial")
    failed = batchyard("fetch", batch["id"], "--partial", "--failed")

    assert (refused.code, refused.out) == (6, "")
    assert "--partial" in refused.err
    assert (partial.code, _ids(partial.out)) == (6, ["row-0", "row-1"])
    assert _ids(failed.out) == ["row-1"]


def test_fetch_continues_a_file_that_was_cut(acme: Caller, batchyard: Command) -> None:
    batch = acme.run(rows("a", "b", "c"))
    whole = batchyard("fetch", batch["id"]).out
    lines = whole.splitlines(keepends=True)
    part = batchyard.folder / f".out.jsonl.{batch['id']}.input.part"
    part.write_text(lines[0] + lines[1][:20])

    ended = batchyard("fetch", batch["id"], "-o", "out.jsonl")

    assert ended.code == 0, ended.err
    assert "1 lines were there already" in ended.err
    assert (batchyard.folder / "out.jsonl").read_text() == whole
    assert not part.exists()


def test_controls_act_and_print_json_lines_in_a_pipe(acme: Caller, batchyard: Command) -> None:
    batchyard.file("in.jsonl", rows("a", "b", WAIT))
    [made] = batchyard("submit", "in.jsonl", "--metadata", "who=me").records()
    running_batch(acme, done=2)

    paused = batchyard("pause", made["id"]).records()
    explained = batchyard("explain", made["id"]).records()
    resumed = batchyard("resume", made["id"]).records()
    cancelled = batchyard("cancel", made["id"], "--wait")
    watched = batchyard("watch", made["id"])

    assert made["metadata"] == {"who": "me"}
    assert [paused[0]["paused"], "paused" in resumed[0]] == [True, False]
    assert explained[0]["object"] == "batch.explanation"
    assert (cancelled.code, cancelled.records()[0]["status"]) == (0, "cancelled")
    assert watched.code == 5
    assert batchyard("show", made["id"]).records()[0]["id"] == made["id"]
    assert batchyard("ls", "--active").records() == []
    assert {"id": MODEL}.items() <= batchyard("models").records()[0].items()


def test_tables_on_a_terminal(acme: Caller, batchyard: Command) -> None:
    batch = acme.run(rows("a", "b"))

    with on_terminal(batchyard, "ls") as terminal:
        assert terminal.end() == 0
        assert "AGE" in terminal.shown()
        assert batch["id"] in terminal.shown()
        assert "{" not in terminal.shown()
    with on_terminal(batchyard, "show", batch["id"]) as terminal:
        assert terminal.end() == 0
        assert "2/2" in terminal.shown()
    with on_terminal(batchyard, "ls", "--json") as terminal:
        assert terminal.end() == 0
        assert json.loads(terminal.shown())["id"] == batch["id"]


def test_files_are_listed_checked_downloaded_and_deleted(acme: Caller, batchyard: Command) -> None:
    file_id = acme.upload(rows("a", "b"))

    [listed] = batchyard("files", "ls").records()
    checked = batchyard("files", "check", file_id)
    got = batchyard("files", "get", file_id)
    to_file = batchyard("files", "get", file_id, "-o", "copy.jsonl")
    removed = batchyard("files", "rm", file_id)
    gone = batchyard("files", "get", file_id)

    assert listed["id"] == file_id
    assert (checked.code, checked.records()[0]["rows"]) == (0, 2)
    assert got.out.encode() == rows("a", "b")
    assert to_file.code == 0
    assert (batchyard.folder / "copy.jsonl").read_bytes() == rows("a", "b")
    assert removed.records() == [{"id": file_id, "object": "file", "deleted": True}]
    assert (gone.code, file_id in gone.err) == (2, True)


def test_a_folder_stands_for_its_files(batchyard: Command) -> None:
    (batchyard.folder / "inputs").mkdir()
    (batchyard.folder / "outputs").mkdir()
    batchyard.file("inputs/a.jsonl", row("a"))
    batchyard.file("inputs/b.jsonl", row("b"))
    batchyard.file("inputs/c.txt", b"no")

    printed = batchyard("run", "inputs")
    written = batchyard("run", "inputs/*.jsonl", "-o", "outputs")

    assert (printed.code, _ids(printed.out)) == (0, ["a", "b"]), printed.err
    assert written.code == 0, written.err
    assert _ids((batchyard.folder / "outputs/b.jsonl").read_text()) == ["b"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["show", "batch_x"], 2, "No batch found with id 'batch_x'."),
        (["run", "nowhere.jsonl"], 2, "there is no such file"),
        (["run", "empty.jsonl"], 2, "batchyard check empty.jsonl"),
        (["run", "in.jsonl", "--window", "5 minutes"], 2, "in 'completion_window'"),
        (["ls", "--context", "nobody"], 2, "There is no context 'nobody'"),
        (["ls", "--limit", "0"], 2, "--limit"),
    ],
)
def test_wrong_use_says_what_to_do(
    batchyard: Command, arguments: list[str], code: int, text: str
) -> None:
    batchyard.file("empty.jsonl", b"\n\n")
    batchyard.file("in.jsonl", row("a"))

    ended = batchyard(*arguments)

    assert (ended.code, ended.out) == (code, "")
    assert text in ended.err
    assert "Traceback" not in ended.err


def test_a_wrong_key_and_a_silent_gateway_are_told_apart(batchyard: Command) -> None:
    wrong = batchyard("ls", OPENAI_API_KEY="sk-nobody-knows-this-key")
    silent = batchyard("ls", OPENAI_BASE_URL="http://127.0.0.1:9/v1")

    assert wrong.code == 2
    assert "Give the right key" in wrong.err
    assert "sk-nobody-knows-this-key" not in wrong.err
    assert silent.code == 7
    assert "does not answer" in silent.err


def test_contexts_name_gateways_and_never_show_keys(acme: Caller, batchyard: Command) -> None:
    bare = {"OPENAI_BASE_URL": "", "OPENAI_API_KEY": "", "MY_KEY": acme.key}
    url = f"{acme.yard.url}/v1"

    before = batchyard("ls", **bare)
    added = batchyard("context", "add", "yard", "--url", url, "--key-env", "MY_KEY", **bare)
    listed = batchyard("context", "ls", **bare)
    used = batchyard("models", **bare)
    removed = batchyard("context", "rm", "yard", **bare)

    assert before.code == 2
    assert "batchyard context add" in before.err
    assert listed.records() == [{"name": "yard", "url": url, "current": True}]
    assert used.code == 0, used.err
    assert removed.code == 0
    shown = [one.out + one.err for one in (before, added, listed, used, removed)]
    assert acme.key not in "".join(shown)


# Each byte goes through every process, and a busy machine has little time for them.
@pytest.mark.timeout(1200)
def test_memory_stays_flat_for_files_of_any_size(acme: Caller, batchyard: Command) -> None:
    """Of 180 MB sent in parts, run, and downloaded; the results are small."""

    def input_of(count: int, size: int) -> bytes:
        return b"".join(
            row(
                f"row-{number}",
                url="/v1/embeddings",
                body={"model": EMBEDDER, "input": "x" * size},
            )
            for number in range(count)
        )

    small = batchyard.file("small.jsonl", input_of(40, 10))
    large = batchyard.file("large.jsonl", input_of(40, 4_500_000))
    assert large.stat().st_size > 2 * PART_BYTES

    small_run = batchyard.measured("run", str(small))
    large_run = batchyard.measured("run", str(large))
    file_id = batchyard("ls").records()[0]["input_file_id"]
    download = batchyard.measured("files", "get", file_id)

    assert (small_run.code, large_run.code, download.code) == (0, 0, 0), large_run.err
    assert large_run.max_bytes - small_run.max_bytes < 16 * _MB
    assert download.max_bytes - small_run.max_bytes < 16 * _MB


@pytest.fixture
def operator(acme: Caller, tmp_path: Path) -> Command:
    key = f"sk-operator-{acme.tenant}"
    acme.yard.on_state(lambda state: state.keys.add("operators", key, scopes=(Scope.OPERATOR,)))
    return Command(replace(acme, key=key), tmp_path)


def test_an_operator_sees_the_work_of_all_tenants_and_a_tenant_does_not(
    acme: Caller, batchyard: Command, operator: Command
) -> None:
    batch = acme.create(rows("a", WAIT))
    running_batch(acme)

    [fleet] = operator("top").records()
    lanes = operator("lanes").records()
    engines = operator("engines", "--json").records()
    refused = batchyard("top")

    tenants = {one["tenant"]: one for lane in lanes for one in lane["tenants"]}
    assert tenants[acme.tenant]["rows_left"] >= 1
    assert {lane["name"] for lane in lanes} == {lane["name"] for lane in fleet["lanes"]}
    assert acme.tenant in {one["id"] for one in fleet["tenants"]}
    assert {one["state"] for one in engines} == {"absent"}
    assert refused.code == 2
    assert "Missing scopes: operator" in refused.err
    with on_terminal(operator, "top") as terminal:
        terminal.until(acme.tenant)
        terminal.press("\x03")
        assert terminal.end() == 130
    acme.yard.engine.release(batch["id"])


def test_ids_come_from_standard_input_as_other_commands_print_them(
    acme: Caller, batchyard: Command
) -> None:
    batchyard.file("in.jsonl", rows("a"))
    submitted = batchyard("submit", "in.jsonl").out
    [record] = [json.loads(line) for line in submitted.splitlines()]

    watched = batchyard.piped(submitted, "watch", "-")
    wrong = batchyard.piped("{}\n", "watch", "-")

    assert watched.code == 0, watched.err
    assert watched.records()[-1]["id"] == record["id"]
    assert (wrong.code, wrong.err.strip()) == (
        2,
        "batchyard: A line of standard input is no batch with an 'id'.",
    )


def test_whoami_says_which_tenant_and_limits_a_key_has(acme: Caller, batchyard: Command) -> None:
    [found] = batchyard("whoami").records()

    assert (found["url"], found["tenant"]) == (f"{acme.yard.url}/v1", acme.tenant)
    with on_terminal(batchyard, "whoami") as terminal:
        terminal.until("webhook endpoints")
        assert terminal.end() == 0
    assert batchyard("whoami", OPENAI_API_KEY="sk-wrong").code == 2


def test_webhooks_are_added_tried_and_removed(batchyard: Command) -> None:
    receiver = Receiver()
    try:
        [made] = batchyard("webhooks", "add", receiver.url, "--event", "batch.failed").records()
        [tried] = batchyard("webhooks", "test", made["id"]).records()
        [turned] = batchyard("webhooks", "rotate", made["id"], "--keep-old").records()
        listed = batchyard("webhooks", "ls").records()
    finally:
        receiver.stop()
    [gone] = batchyard("webhooks", "rm", made["id"]).records()

    assert made["event_types"] == ["batch.failed"]
    assert made["signing_secret"] != turned["signing_secret"]
    assert tried["status_code"] == 200
    assert [one["id"] for one in listed] == [made["id"]]
    assert "signing_secret" not in listed[0] or not listed[0]["signing_secret"]
    assert (gone["id"], gone["deleted"]) == (made["id"], True)
    assert batchyard("webhooks", "ls").records() == []
