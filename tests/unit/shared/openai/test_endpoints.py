from shared.openai.endpoints import ENDPOINTS, endpoints_of


def test_every_endpoint_belongs_to_one_runner() -> None:
    assert {*ENDPOINTS} == {*endpoints_of("generate"), *endpoints_of("pooling")}
    assert not {*endpoints_of("generate")} & {*endpoints_of("pooling")}


def test_only_endpoints_that_write_have_output() -> None:
    assert [*endpoints_of("generate")] == [one.path for one in ENDPOINTS.values() if one.has_output]
