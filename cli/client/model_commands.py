"""`batchyard models`."""

from cli.client.options import AsJson, Context, connected
from cli.client.output import print_records


def models(context: Context = None, *, as_json: AsJson = False) -> None:
    """List the models that the gateway serves."""
    with connected(context) as gateway:
        found = gateway.get("models")["data"]
    print_records(found, ("MODEL",), lambda model: (model["id"],), as_json=as_json)
