"""OpenAI's Models API: the catalog's models and their adapters."""

from collections.abc import Mapping
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from gateway.auth import Tenant
from gateway.dependencies import Use
from gateway.model_states import engine_view
from gateway.own_adapters import adapter_of
from shared.adapters import AdapterName, adapter_named
from shared.catalog import Catalog
from shared.engines import EngineRecord
from shared.errors import NotFoundError
from shared.openai.shapes import Model

router = APIRouter()


class Models(BaseModel):
    """All models; this listing has no pages."""

    object: Literal["list"] = "list"
    data: list[Model]


@router.get("/models")
async def list_models(tenant: Tenant, services: Use) -> Models:
    """All models that you may use, and your own LoRA adapters for them."""
    created = services.catalog_changed_at
    settings = await services.state.tenants.settings(tenant)
    names = [*filter(settings.may_use, services.catalog.served_names())]
    if takers := [*filter(settings.may_use, services.catalog.adapter_takers)]:
        own = sorted(await services.state.files.adapters(tenant))
        names += [str(AdapterName(model, file_id)) for model in takers for file_id in own]
    engines = (await services.state.engines.last()).engines
    return Models(data=[_shape(services.catalog, name, created, engines) for name in names])


# A path, because names have slashes. Clients escape them; servers unescape them before routing.
@router.get("/models/{model:path}")
async def retrieve_model(model: str, tenant: Tenant, services: Use) -> Model:
    """One model."""
    settings = await services.state.tenants.settings(tenant)
    adapter = await adapter_of(services, tenant, model)
    is_served = adapter is not None or model in services.catalog.served_names()
    own = adapter_named(model) if adapter else None
    if not is_served or not settings.may_use(own.model if own else model):
        raise NotFoundError(
            f"The model '{model}' does not exist or you do not have access to it.",
            param="model",
            code="model_not_found",
        )
    engines = (await services.state.engines.last()).engines
    return _shape(services.catalog, model, services.catalog_changed_at, engines)


def _shape(catalog: Catalog, name: str, created: int, engines: Mapping[str, EngineRecord]) -> Model:
    entry = catalog.model(name)
    lanes = [lane.name for lane in catalog.lanes_of(name)]
    view = engine_view(engines[lane] for lane in lanes if lane in engines)
    return Model(
        id=name,
        created=created,
        endpoints=list(entry.endpoints),
        live=entry.live is not None,
        state=view.state,
        replicas=view.replicas,
    )
