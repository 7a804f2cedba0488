"""The page: which parts there are and where they stand."""

from typing import TYPE_CHECKING, Any

from bokeh.layouts import column, row
from bokeh.models import Div, Select
from distributed.dashboard.components.scheduler import BOKEH_THEME, env

from dtomo.dashboard import panels
from dtomo.dashboard.runs import Runs, RunState
from dtomo.dashboard.slices import Slices
from dtomo.dashboard.style import SHEET, WRAPPED

if TYPE_CHECKING:
    from distributed import Scheduler

EVERY = 1000
"""Milliseconds between two updates."""

HELP = """<div class='help'><h2>No run yet</h2>
<p>This page shows reconstructions while they go on. Start one on this cluster:</p>
<p><code>dtomo recon SCAN.h5 OUT.zarr --cluster {address}</code></p>
<p>It then fills by itself: residuals, middle slices, slabs done and left, memory of the workers, time
left.</p></div>"""

NEWEST = "the newest run"


class View:
    """The page in one browser.

    Parameters
    ----------
    runs
        What is known.
    scheduler
        Whose workers are shown.
    """

    def __init__(self, runs: Runs, scheduler: "Scheduler") -> None:
        self._runs, self._scheduler = runs, scheduler
        self._help = Div(text=HELP.format(address=scheduler.address), sizing_mode="stretch_width", stylesheets=[SHEET])
        self._select = Select(value=NEWEST, options=[NEWEST], visible=False, width=320, height=32)
        self._header, self._settings = panels.Header(), panels.Settings()
        self._slices, self._curve = Slices(), panels.Curve()
        self._slabs, self._memory = panels.Slabs(), panels.Memory(scheduler)
        plots = [*self._curve.plots, self._slabs.root, self._memory.root]
        self._body = column(
            self._header.root,
            row(self._slices.root, self._settings.root, sizing_mode="stretch_width", styles=WRAPPED),
            row(*plots, sizing_mode="stretch_width", spacing=8, styles=WRAPPED),
            sizing_mode="stretch_width",
            visible=False,
        )
        self.root = column(self._select, self._help, self._body, sizing_mode="stretch_width")
        self.update()

    def update(self) -> None:
        """Bring all parts up to date."""
        run = self._chosen()
        self._help.visible, self._body.visible = run is None, run is not None
        if run is None:
            return
        now = self._runs.clock()
        names, colors = panels.worker_names(self._scheduler)
        self._header.update(run, now)
        self._settings.update(run, now)
        self._slices.update(run, now)
        self._curve.update(run, now, colors)
        self._slabs.update(run, now, colors, names)
        self._memory.update(run, colors, names)

    def _chosen(self) -> RunState | None:
        """The newest run, unless the user chose another."""
        known = dict(self._runs.by_id)
        options = [NEWEST, *((name, f"{run.name} ({run.state})"[:80]) for name, run in reversed(known.items()))]
        if self._select.options != options:
            self._select.options = options
        self._select.visible = len(known) > 1
        if self._select.value not in known:
            self._select.value = NEWEST
            return next(reversed(known.values()), None)
        return known[self._select.value]


def show(runs: Runs, scheduler: "Scheduler", extra: dict[str, Any], doc: Any) -> None:
    """Fill the document of one browser."""
    view = View(runs, scheduler)
    doc.add_root(view.root)
    doc.add_periodic_callback(view.update, EVERY)
    doc.title = "dtomo"
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)
    doc.theme = BOKEH_THEME
