"""Brings the page to a scheduler, be it in this process or far away."""

import logging
from typing import TYPE_CHECKING, Any

from distributed import SchedulerPlugin

from dtomo.dashboard.feed import TOPIC
from dtomo.dashboard.runs import Runs

if TYPE_CHECKING:
    from distributed import Client, Scheduler

PAGE = "dtomo"
"""Its address on the dashboard, and its name in the menu."""

logger = logging.getLogger(__name__)


class NoPage(Exception):
    """A scheduler that cannot have the page, and why."""


class Page(SchedulerPlugin):
    """Collects the events of runs on a scheduler and shows them under ``/dtomo``."""

    name = "dtomo-page"
    idempotent = True

    def __init__(self) -> None:
        self.runs = Runs()

    async def start(self, scheduler: "Scheduler") -> None:
        """Add the page to the scheduler's dashboard.

        Raises
        ------
        NoPage
            There is no dashboard, or no bokeh.
        """
        add_page(scheduler, self.runs)

    def log_event(self, topic: str, msg: Any) -> None:
        """Take in an event of a run; pictures are not kept in the scheduler's own list of events."""
        if topic != TOPIC or not isinstance(msg, dict):
            return
        try:
            self.runs.take(msg)
        except (KeyError, TypeError, ValueError) as error:
            logger.info("not an event of a run: %r", error)
        msg.pop("data", None)

    def remove_worker(self, scheduler: "Scheduler", worker: str, **kwargs: Any) -> None:
        """What it had under way waits again."""
        self.runs.lose_worker(worker)

    def remove_client(self, scheduler: "Scheduler", client: str) -> None:
        """The run that it led has no leader."""
        self.runs.lose_client(client)


def add_page(scheduler: "Scheduler", runs: Runs) -> None:
    """Serve the page beside the pages of Dask, and put it into their menu."""
    try:
        from bokeh.server.server import BokehTornado
        from distributed.dashboard.core import BokehApplication
        from distributed.dashboard.scheduler import template_variables
        from tornado.ioloop import IOLoop

        from dtomo.dashboard.page import show
    except ImportError as error:
        raise NoPage(f"the scheduler cannot draw it ({error})") from error
    pages = [app for app in scheduler.http_application.applications if isinstance(app, BokehTornado)]
    if not pages:
        raise NoPage("the scheduler runs without a dashboard")
    variables = template_variables(scheduler)
    if PAGE not in variables["pages"]:
        variables["pages"].insert(0, PAGE)

    def document(server: "Scheduler", extra: dict[str, Any], doc: Any) -> None:
        show(runs, server, extra, doc)

    application = BokehApplication(
        {f"/{PAGE}": document}, scheduler, prefix=pages[0].prefix, template_variables=variables
    )
    scheduler.http_application.add_application(application)
    application.initialize(IOLoop.current())
    application.start()


def install(client: "Client") -> str | None:
    """Bring the page to the client's scheduler, unless it is there.

    Returns
    -------
    str or None
        Why there is no page, in words; None if there is one.
    """
    try:
        client.register_plugin(Page())
    except NoPage as error:
        return str(error)
    except ImportError as error:
        return f"the scheduler cannot import it ({error})"
    except Exception as error:  # noqa: BLE001  a scheduler may have other versions: no reason for a run to fail
        return f"the scheduler cannot show it ({error!r:.200})"
    return None


def link(client: "Client") -> str:
    """Where the page is (or Dask's own, with the reason why there is no other), for the user to open."""
    own = str(client.dashboard_link)
    missing = install(client)
    if missing is not None:
        return f"{own} (without the dtomo page: {missing})"
    return own.removesuffix("status") + PAGE if own.endswith("/status") else own
