import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import ROOT, files, tree

_BROAD = {"Exception", "BaseException"}

#: Where code must survive any error, and why. All other code names the errors that it expects.
_GRANTED = {
    ("batchyard/threads.py", "work"): "whoever awaits the call gets its error",
    ("dispatcher/duties.py", "survive"): "a bug in one batch must not stop the others",
    ("dispatcher/election.py", "_is_elected"): "without Redis nobody leads; it asks again",
    ("dispatcher/intake.py", "_handle"): "a bug in one message must not stop the others",
    ("dispatcher/settlement.py", "settle"): "what cannot be buried is left to the broker",
    ("gateway/live_messages.py", "_answer"): "a bug in one call must not stop the others",
    ("gateway/tokens.py", "load_counter"): "tokenizers raises nothing narrower; it is estimated",
    ("shared/state/trips.py", "_make"): "whoever awaits a command gets its error",
    ("worker/core_sequences.py", "add_sequences"): "the others have done nothing",
    ("worker/core_sequences.py", "_send_these"): "nobody else waits for them",
    ("worker/engine.py", "_heal_until_hopeless"): "whatever it is, a new replica may help",
    ("worker/engine_start.py", "register_model_classes"): "vLLM finds the words for such a model",
    ("worker/fork_server.py", "_load_tokenizer"): "whoever needs it finds the words for it",
    ("worker/front.py", "_answer"): "the replica waits for an answer to each row",
    ("worker/fronts.py", "_enter"): "a row's failure is its result",
    ("worker/grammar_trial.py", "_try"): "a foreign compiler's error is its verdict",
    ("worker/invalid_bodies.py", "create_or_tell"): "vLLM's route would repeat its text",
    ("worker/model_folder.py", "is_at_hub"): "its client's errors are httpx's or httpx2's",
    ("worker/openai_layer.py", "_answer"): "the app finds the words for what is wrong",
    ("worker/openai_layer.py", "answer"): "a row's failure is its result",
}


def test_broad_excepts_stand_only_where_they_are_granted() -> None:
    found = {place for file in files() for place in _broad_handlers(file)}

    assert found == set(_GRANTED)


def _broad_handlers(file: Path) -> Iterator[tuple[str, str]]:
    """File and function of each handler that catches every exception."""
    name = str(file.relative_to(ROOT))
    for function, node in _nodes(tree(file)):
        match node:
            case ast.ExceptHandler(type=None):
                is_broad = not _raises(node)
            case ast.ExceptHandler(type=expected) if expected is not None:
                is_broad = _is_broad(expected) and not _raises(node)
            case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress")):
                is_broad = any(_is_broad(argument) for argument in node.args)
            case _:
                is_broad = False
        if is_broad:
            yield name, function


def _nodes(module: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Every node with the name of the function that it stands in."""
    waiting: list[tuple[str, ast.AST]] = [("module", module)]
    while waiting:
        function, node = waiting.pop()
        yield function, node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        waiting += ((function, child) for child in ast.iter_child_nodes(node))


def _is_broad(expected: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id in _BROAD for node in ast.walk(expected))


def _raises(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)
