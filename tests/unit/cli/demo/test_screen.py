import io

from rich.console import Console

from cli.demo.screen import ProgressLine, Screen


def _plain() -> tuple[Screen, io.StringIO]:
    output = io.StringIO()
    return Screen(Console(file=output, force_terminal=False, soft_wrap=True)), output


def test_a_plain_log_has_a_line_for_each_change_and_no_control_signs() -> None:
    screen, output = _plain()

    with screen.bars({"chat": 10}) as bars:
        bars.show("chat", ProgressLine(0, None, "the engine starts"))
        bars.show("chat", ProgressLine(0, None, "the engine starts"))
        bars.show("chat", ProgressLine(5, 2.5, ""))
        bars.end("chat")

    assert output.getvalue().splitlines() == [
        "progress   chat           0/10  the engine starts",
        "progress   chat           5/10  2.5 rows/s",
    ]


def test_brackets_in_a_text_are_no_markup() -> None:
    screen, output = _plain()

    screen.line("ticket", "[bold]not bold[/bold]")

    assert "[bold]not bold[/bold]" in output.getvalue()


def test_a_terminal_gets_bars() -> None:
    output = io.StringIO()
    screen = Screen(Console(file=output, force_terminal=True, width=120))

    with screen.bars({"chat": 10}) as bars:
        bars.show("chat", ProgressLine(5, 2.5, "half done"))

    assert "5/10" in output.getvalue()
    assert "half done" in output.getvalue()
