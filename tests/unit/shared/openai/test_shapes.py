from shared.openai.shapes import CursorPage, Model


def test_a_page_names_its_ends() -> None:
    models = [Model(id=name, created=1) for name in "abc"]

    page = CursorPage.of(models, has_more=True)

    assert page.model_dump() == {
        "object": "list",
        "data": [model.model_dump() for model in models],
        "first_id": "a",
        "last_id": "c",
        "has_more": True,
    }


def test_an_empty_page_has_no_ends() -> None:
    none: list[Model] = []

    assert CursorPage.of(none, has_more=False).model_dump() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
