"""Adds up what the rows of an input would take, as far as it can be known before they run."""

import time
from collections import Counter as Count

from pydantic import BaseModel, ConfigDict, Field

from gateway.tokens import Counted, Counter, Method
from shared.input.bad_lines import problem_of
from shared.input.rows import Row
from shared.openai.endpoints import ENDPOINTS
from shared.openai.media_tokens import may_have_media
from shared.openai.shapes import BatchError

#: Seconds that a tally spends on tokenizing its sample, and again on long rows outside the sample.
_COUNT_SECONDS = 3.0
#: Rows that are listed, of each kind.
_MAX_LISTED = 1000
#: Every request that generates text has at least one output token.
_MIN_OUTPUT = 1
#: The description of each way of counting, the least exact first. If several were used, the least
#: exact one is reported.
_NOTES: dict[Method, str] = {
    "bytes": "The model's tokenizer is not on this machine, so every 4 bytes of a line count as "
    "one token, and an image by its pixels.",
    "tokenizer_without_template": "Counted by the model's own tokenizer from the texts alone, "
    "without what the chat template adds to them.",
    "tokenizer": "Counted with the tokenizer that the model's engine loads, and with its chat "
    "template for chats.",
}


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class Tokens(_Shape):
    """Tokens of the requests that would run, as far as they can be known before."""

    input: int = Field(description="Of all prompts. An estimate if `is_estimate`.")
    output: int = Field(
        description="What the requests allow, as far as the model's context has room for it. "
        "Without a limit, 16 for each choice of a completion and 256 for each other answer."
    )
    counted_by: Method
    rows_counted: int = Field(description="Rows whose prompts were tokenized.")
    is_estimate: bool
    note: str = Field(description="How the tokens were counted.")


class Violation(_Shape):
    """A request that is longer than the model's context."""

    line: int
    input_tokens: int | None = Field(
        description="Null if the requested output is too long whatever the prompt is."
    )
    output_tokens: int = Field(description="What the request allows, or the one token it needs.")


class ContextLength(_Shape):
    """Requests that the model would refuse because prompt and output do not fit its context."""

    max_model_len: int | None = Field(
        description="Null if the gateway cannot know it, and if there are several models."
    )
    rows_checked: int = Field(description="Rows that certainly fit, or certainly do not.")
    violations: list[Violation] = Field(description="The first 1,000.")
    more_violations: int


class _Sum:
    """Tokens of the prompts of some rows: as they were counted, and as planning predicts them."""

    def __init__(self, *, tokens: int = 0, predicted: int = 0, rows: int = 0) -> None:
        self.tokens = tokens
        self.predicted = predicted
        self.rows = rows

    def add(self, row: Row, counted: Counted) -> None:
        self.tokens += counted.total
        self.predicted += _predicted_prompt(row)
        self.rows += 1


class Tally:
    """Adds up rows: tokenizes every one, or one in `every` and those that may be too long."""

    def __init__(self, *, every: int, seconds: float = _COUNT_SECONDS) -> None:
        self._every = every
        self._sample_seconds = seconds
        self._long_seconds = seconds
        #: By endpoint and model.
        self._counters: dict[tuple[str, str], Counter] = {}
        self.rows_by_model: Count[str] = Count()
        #: As planning predicts them, which costs are learned by.
        self.predicted_by_model: Count[str] = Count()
        #: Requests that the engine would refuse by their bodies: the first, and how many.
        self.refused: list[BatchError] = []
        self.refused_count = 0
        self._rows = 0
        self._output = 0
        self._counted = _Sum()
        self._sampled = _Sum()
        #: Of all rows, as planning predicts their prompts: by their bytes and their media.
        self._predicted = 0
        self._is_exact = True
        self._checked = 0
        self._violations: list[Violation] = []
        self._violation_count = 0

    def add(self, rows: list[Row], counter: Counter) -> None:
        """Take good rows, in order; blocks for as long as it tokenizes."""
        for row in rows:
            self._counters[row.url, row.model] = counter
            self.rows_by_model[row.model] += 1
            self.predicted_by_model[row.model] += row.tokens
            if row.refusal is not None or row.bad_line is not None:
                self._add_refused(row)
                continue
            self._predicted += _predicted_prompt(row)
            counted = self._count(row, counter)
            self._rows += 1
            if self._fits(row, counted, counter):
                self._output += _output_in_context(row, counted, counter)

    def tokens(self) -> Tokens:
        """The sums so far, with rows that were not counted estimated from the sample by bytes."""
        methods = {counter.method(url) for (url, _), counter in self._counters.items()}
        method: Method = next((one for one in _NOTES if one in methods), "bytes")
        left = self._predicted - self._counted.predicted
        basis = self._sampled if self._sampled.predicted else _Sum(tokens=1, predicted=1)
        is_whole = self._counted.rows == self._rows
        note = _NOTES[method]
        if not is_whole and method != "bytes":
            note += (
                f" {self._counted.rows} of {self._rows} rows were counted, and the others "
                "estimated by their bytes."
            )
        return Tokens(
            input=self._counted.tokens + left * basis.tokens // basis.predicted,
            output=self._output,
            counted_by=method,
            rows_counted=self._counted.rows,
            is_estimate=not (is_whole and self._is_exact) and self._rows > 0,
            note=note,
        )

    def context_length(self) -> ContextLength:
        """What is known of rows that are too long."""
        lengths = {counter.max_model_len for counter in self._counters.values()}
        return ContextLength(
            max_model_len=lengths.pop() if len(lengths) == 1 else None,
            rows_checked=self._checked,
            violations=sorted(self._violations, key=lambda one: one.line),
            more_violations=self._violation_count - len(self._violations),
        )

    def _add_refused(self, row: Row) -> None:
        self.refused_count += 1
        if len(self.refused) < _MAX_LISTED and (problem := problem_of(row)) is not None:
            self.refused.append(problem)

    def _count(self, row: Row, counter: Counter) -> Counted | None:
        """Tokenize the row if it is in the sample, or may be too long, while there is time."""
        if not counter.has_tokenizer:
            return None
        is_sampled = self._rows % self._every == 0 and self._sample_seconds > 0
        if not is_sampled and not (self._long_seconds > 0 and _may_be_long(row, counter)):
            return None
        began = time.perf_counter()
        counted = counter.count(row.url, row.line)
        seconds = time.perf_counter() - began
        self._counted.add(row, counted)
        self._is_exact = self._is_exact and counted.is_exact
        if is_sampled:
            self._sample_seconds -= seconds
            self._sampled.add(row, counted)
        else:
            self._long_seconds -= seconds
        return counted

    def _fits(self, row: Row, counted: Counted | None, counter: Counter) -> bool:
        """False only if the row is certainly too long, which is reported."""
        max_tokens = counter.max_model_len
        if max_tokens is None:
            return True
        output = _needed_output(row)
        if counted is not None and counted.at_least + output > max_tokens:
            self._add_violation(row, counted.at_least, output)
            return False
        if output >= max_tokens:
            self._add_violation(row, None, output)
            return False
        if (counted is not None and counted.is_exact) or (
            counter.has_tokenizer and not _may_be_long(row, counter)
        ):
            self._checked += 1
        return True

    def _add_violation(self, row: Row, input_tokens: int | None, output_tokens: int) -> None:
        self._checked += 1
        self._violation_count += 1
        if len(self._violations) < _MAX_LISTED:
            self._violations.append(
                Violation(line=row.number, input_tokens=input_tokens, output_tokens=output_tokens)
            )


def _predicted_prompt(row: Row) -> int:
    return row.tokens - row.output


def _may_be_long(row: Row, counter: Counter) -> bool:
    """False only if the row fits even with one token for each of its bytes."""
    max_tokens = counter.max_model_len
    if max_tokens is not None and may_have_media(row.line):
        # One that a short URL names may be thousands.
        return True
    longest = len(row.line) + counter.overhead + _needed_output(row)
    return max_tokens is not None and longest > max_tokens


def _needed_output(row: Row) -> int:
    """The output tokens that the engine reserves."""
    return (row.limit or _MIN_OUTPUT) if ENDPOINTS[row.url].has_output else 0


def _output_in_context(row: Row, counted: Counted | None, counter: Counter) -> int:
    """The predicted output, limited to what the context leaves after the prompt."""
    if counter.max_model_len is None:
        return row.output
    left = counter.max_model_len - (counted.at_least if counted else 0)
    return min(row.output, row.sequences * left)
