from typing import Any

from benchmarks.gpu.report import page

LOAD = {"gpu_percent": 91.6, "gpu_gib": 61.2, "cores": {"core": 1.02, "replica": 0.9}}
FIGURE = {
    "name": "rows/s, 7B",
    "value": 84.9,
    "baseline": 85.7,
    "ratio": 0.9907,
    "unit": "rows/s",
    "goal": "ratio at least 0.99",
    "holds": True,
}


def results(**cases: Any) -> dict[str, Any]:
    machine = {
        "card": "NVIDIA H100", "memory_gib": 80.0, "driver": "580", "processors": 16,
        "python": "3.12.3", "vllm": "0.29.0", "torch": "2.13.0", "ray": "2.60.0",
    }  # fmt: skip
    return {"machine": machine, "began_at": 1_700_000_000, "cases": cases}


def case(**changes: Any) -> dict[str, Any]:
    return {"error": "", "figures": [], "measured": [], **changes}


def measured(side: str, rate: float) -> dict[str, Any]:
    return {"side": side, "rows_per_second": rate, "load": LOAD}


def lines(text: str, begin: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(begin)]


def test_without_results_the_page_says_so() -> None:
    assert "Nothing has been measured yet." in page(None)


def test_a_figure_stands_with_its_goal_and_whether_it_holds() -> None:
    text = page(results(large=case(figures=[FIGURE])))

    assert lines(text, "| rows/s, 7B") == [
        "| rows/s, 7B | 84.9 rows/s | 85.7 rows/s | 0.991 | ratio at least 0.99 | yes |"
    ]


def test_what_several_cards_did_has_a_table_of_its_own() -> None:
    of_cards = results(cards=case(figures=[{**FIGURE, "name": "2 engines"}]))
    of_cards["machine"]["cards"] = 2

    text = page(results(), of_cards)

    assert len(lines(text, "| 2 engines")) == 1
    assert ["2 x" in line for line in lines(text, "On 20")] == [False, True]
    assert "## Several cards" not in page(results())


def test_what_another_card_did_has_a_table_of_its_own() -> None:
    of_another = results(large=case(figures=[{**FIGURE, "name": "its rows/s"}]))

    text = page(results(), of_another=of_another)

    assert len(lines(text, "| its rows/s")) == 1
    assert "## Another card" not in page(results())


def test_other_servers_stand_beside_it_and_what_was_not_measured_is_said() -> None:
    text = page(
        results(
            large=case(
                measured=[
                    measured("fleet, qwen-7b", 84.0),
                    measured("fleet, qwen-7b", 86.0),
                    measured("bare engine, qwen-7b, run_batch", 76.2),
                ]
            )
        )
    )

    assert lines(text, "| 7B, 300 in") == [
        "| 7B, 300 in, 128 out | 85 | not measured | 76.2 | not measured | not measured |"
    ]


def test_the_load_of_the_last_turn_names_the_bound() -> None:
    text = page(results(large=case(measured=[measured("fleet, qwen-7b", 84.0)])))

    assert lines(text, "| `large`") == [
        "| `large` | fleet, qwen-7b | 92 % | 61 GiB | core 1.02, replica 0.90 |"
    ]


def test_a_case_that_failed_is_told_with_its_first_line() -> None:
    text = page(results(kill=case(error="RuntimeError: It hung.\nA traceback.")))

    assert lines(text, "| case") == [
        "| case `kill` did not come to its end: RuntimeError: It hung. | | | | | |"
    ]
