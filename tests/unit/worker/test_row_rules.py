import json

from shared.catalog import Model
from shared.openai.media import MediaLimits, MediaRules
from shared.openai.row_limits import RowLimits
from shared.openai.row_rules import DEFAULT_RULES, RowRules
from tests.bodies import CHAT, GOOD
from worker.row_rules import (
    bounded_result,
    refused,
    rules_environment,
    rules_from,
)


def test_a_replica_has_the_rules_of_its_model() -> None:
    model = Model(name="m", pools=("local",), extra_fields=("vllm_xargs",))

    assert rules_from(rules_environment(model)) == model.row_rules


def test_a_replica_without_rules_has_the_strictest() -> None:
    assert rules_from({}) == DEFAULT_RULES


def test_a_request_that_breaks_a_rule_gets_an_error_with_the_name_of_its_field() -> None:
    result = refused(DEFAULT_RULES, CHAT, {**GOOD[CHAT], "kv_transfer_params": {"a": 1}})

    assert result is not None
    status, body = result
    error = json.loads(body)["error"]
    assert (400, "kv_transfer_params") == (status, error["param"])
    assert error["type"] == "invalid_request_error"


def test_a_request_that_keeps_the_rules_and_one_that_is_none_are_the_engines() -> None:
    assert refused(DEFAULT_RULES, CHAT, GOOD[CHAT]) is None
    assert refused(DEFAULT_RULES, CHAT, ["x"]) is None


def test_an_answer_that_is_too_large_becomes_an_error() -> None:
    rules = RowRules(limits=RowLimits(result_bytes=1024))

    status, body = bounded_result(rules, (200, b"x" * 1025))

    assert (400, "result_too_large") == (status, json.loads(body)["error"]["code"])
    assert bounded_result(rules, (200, b"x" * 1024)) == (200, b"x" * 1024)


def test_the_engine_takes_data_alone_whatever_the_lane_job_may_fetch() -> None:
    limits = MediaLimits(pixels=1_000_000, seconds=60, bytes=5_000_000)
    model = Model(name="m", pools=("local",), media_domains=("a.example",), media_limits=limits)

    environment = rules_environment(model)

    assert model.row_rules.media.domains == {"a.example"}
    assert rules_from(environment).media == MediaRules(limits=limits)
    assert environment["VLLM_MEDIA_CONNECTOR"] == "batchyard"
    assert environment["VLLM_MAX_IMAGE_PIXELS"] == "1000000"
    assert environment["VLLM_MAX_AUDIO_DECODE_DURATION_S"] == "60"
    assert environment["VLLM_MAX_AUDIO_CLIP_FILESIZE_MB"] == "5"
