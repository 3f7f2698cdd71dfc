import pytest

from shared.ordering.tenant_usage import TenantKind, TenantUsage, of_all, to_usages


def test_a_tenant_is_known_by_its_own_rows_after_a_few() -> None:
    few, many = TenantUsage(8, 80, 10, 30), TenantUsage(8000, 80_000, 10_000, 30_000)

    assert TenantUsage().ratio(1.0) == 1.0
    assert few.ratio(1.0) == pytest.approx(0.75)
    assert many.ratio(1.0) == pytest.approx(0.5, rel=0.01)


def test_sums_are_read_as_the_commits_write_them() -> None:
    text = '[["/v1/chat/completions 4",10,4000,1000,500.5],["/v1/embeddings 2",1,9,8,0]]'

    assert to_usages({"acme": text}) == {
        TenantKind("/v1/chat/completions 4", "acme"): TenantUsage(10, 4000, 1000, 500.5),
        TenantKind("/v1/embeddings 2", "acme"): TenantUsage(1, 9, 8, 0),
    }


def test_the_part_of_answers_is_that_of_all_tokens_that_were_used() -> None:
    one, other = TenantUsage(1, 10, 6, 2), TenantUsage(1, 10, 0, 8)

    assert of_all([one, other]) == TenantUsage(2, 20, 6, 10)
    assert of_all([one, other]).answer_part == 10 / 16
    assert of_all([]).answer_part == 0
