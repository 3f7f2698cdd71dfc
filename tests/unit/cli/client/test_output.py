import io

from rich.console import Console

from cli.client.output import table_of


def test_a_narrow_terminal_cuts_no_id() -> None:
    id_, model = "batch_" + 32 * "0", "a-model-with-a-long-name"
    out = io.StringIO()

    Console(width=70, file=out).print(
        table_of(("ID", "STATUS", "MODEL"), [(id_, "in_progress", model)])
    )

    shown = out.getvalue()
    assert id_ in shown
    assert all(len(line) <= 70 for line in shown.splitlines())
