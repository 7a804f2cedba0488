"""A page on the Dask dashboard that shows runs while they go on: ``http://…/dtomo``."""

from typing import TYPE_CHECKING

from dtomo.dashboard.feed import Feed, SlabFeed, Solving, show_run, watch_slab

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Feed", "SlabFeed", "Solving", "link", "show_run", "watch_slab"]


def link(client: "Client") -> str:
    """Where the page is, brought to the client's scheduler if it is not there yet; see `plugin.link`."""
    from dtomo.dashboard import plugin

    return plugin.link(client)
