import subprocess
import sys

import pytest
from structlog.contextvars import get_contextvars

from shared.errors import SetupError
from shared.tracing import spans

_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    "environment",
    [{}, {_ENDPOINT: ""}, {_ENDPOINT: "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"}],
    ids=["no collector", "an empty one", "disabled"],
)
def test_nothing_is_loaded_or_recorded_while_it_is_off(environment: dict[str, str]) -> None:
    program = (
        "import sys; from shared.tracing import spans; spans.start('test');"
        f"span = spans.entrance('x', 'server', parent={_PARENT!r}); "
        "assert not spans.is_on() and not span.is_recorded and not spans.current();"
        "assert 'opentelemetry' not in sys.modules"
    )
    path = ":".join(sys.path)

    subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": path, **environment}, check=True
    )


def test_all_spans_are_one_object_while_it_is_off() -> None:
    with spans.span("a", parent="") as one, spans.linked("b", links=[_PARENT]) as other:
        assert one is other
        assert one.traceparent == ""


def test_log_lines_name_the_trace_of_a_client_while_it_is_off() -> None:
    with spans.entrance("a", "server", parent=_PARENT) as span:
        inside = get_contextvars()
        with spans.named(_OTHER):
            deeper = get_contextvars()
        outer = get_contextvars()

    assert span.traceparent == ""
    assert inside == outer == {"trace_id": "0af7651916cd43dd8448eb211c80319c"}
    assert deeper == {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}
    assert get_contextvars() == {}


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"]
)
def test_another_protocol_is_refused_by_the_name_of_its_variable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv(name, "grpc")

    with pytest.raises(SetupError, match=f"{name}: only http/protobuf is supported"):
        spans.start("test")
