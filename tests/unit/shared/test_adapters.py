from shared.adapters import AdapterName, WithAdapters, adapter_named


def test_a_name_is_the_models_and_the_files() -> None:
    own = AdapterName("org/m:8b", "file-Ab1")

    assert str(own) == "org/m:8b:file-Ab1"
    assert adapter_named(str(own)) == own
    for name in ("m", "m:8b", "m:file-", "m:file-a/b", "m:file-a:b", ":file-a", "m:file-a\n"):
        assert adapter_named(name) is None


def test_a_tenant_sees_its_adapters_of_the_models_that_it_may_use() -> None:
    known = WithAdapters({"m": 1, "n": 2}, ("m", "x"), ("file-a", "file-b"))

    assert list(known) == ["m", "n", "m:file-a", "m:file-b"]
    assert len(known) == 4
    assert known["m:file-a"] == known["m"] == 1
    for name in ("m:file-c", "n:file-a", "x:file-a", "x"):
        assert name not in known
        assert known.get(name) is None
