"""Pictures of fits: files that are pictures, whatever a history holds."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.fitting.history import Epoch, History
from dtomo.report.fit_pictures import draw_history, draw_slices


@pytest.mark.parametrize("held_out", [True, False])
def test_history(tmp_path: Path, held_out: bool) -> None:
    epochs = tuple(
        Epoch(n, n, 1 / n, 2 / n if held_out else None, {"R": 0.1 * n}, {"psnr": 3.0 * n} if held_out else {})
        for n in range(1, 6)
    )
    drawn = matplotlib.image.imread(draw_history(tmp_path / "new" / "h.png", History(epochs), "a fit"))
    plain = matplotlib.image.imread(draw_history(tmp_path / "p.png", History(epochs[:1])))
    assert drawn.shape[1] > drawn.shape[0] > 300
    assert plain[..., :3].std() > 0.01


def test_losses_below_zero_are_drawn(tmp_path: Path) -> None:
    history = History((Epoch(1, 1, -1.0, -2.0), Epoch(2, 2, -3.0, -2.5)))
    assert draw_history(tmp_path / "h.png", history).stat().st_size > 10_000


def test_slices(tmp_path: Path) -> None:
    volume = np.random.default_rng(0).normal(size=(6, 20, 30))
    drawn = matplotlib.image.imread(draw_slices(tmp_path / "s.png", {"before": volume, "after": 0 * volume}))
    assert drawn[..., :3].std() > 0.01


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no epoch to be drawn"):
        draw_history(tmp_path / "h.png", History())
    with pytest.raises(UserError, match="no volume to be drawn"):
        draw_slices(tmp_path / "h.png", {})
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written to"):
        draw_history(tmp_path / "file" / "h.png", History((Epoch(1, 1, 1.0),)))
