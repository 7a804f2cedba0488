"""Progress where there is no terminal, and the time left."""

import pytest

from dtomo.distributed import progress


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.4, "59 s"), (61, "1 min 01 s"), (3599.9, "1 h 00 min"), (7800, "2 h 10 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


def test_time_left_counts_only_what_this_run_did(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.Counter(10, "slabs", done=4, quiet=True) as counter:
        now[0] = 110.0
        counter.advance()
        counter.advance()
        assert counter.seconds_left(now[0]) == pytest.approx(20.0)


def test_kernels_compiled_for_the_first_parts_do_not_count_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.Counter(100, "iterations", quiet=True) as counter:
        for now[0] in (60.0, 61.0, 62.0):
            counter.advance()
        assert counter.seconds_left(now[0]) == pytest.approx(97 * 62 / 3)
        for now[0] in range(63, 93):
            counter.advance()
        assert counter.seconds_left(now[0]) == pytest.approx(67, rel=0.01)


def test_parts_done_side_by_side_are_not_taken_for_a_faster_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.Counter(32, "slabs", quiet=True) as counter:
        for wave in range(1, 4):
            for number in range(8):
                now[0] = 10.0 * wave + 0.1 * number
                counter.advance()
            assert counter.seconds_left(now[0]) == pytest.approx(10.0 * (4 - wave), rel=0.08)


def test_plain_lines_end_with_the_last_part(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.Counter(3, "slabs") as counter:
        for _ in range(3):
            counter.advance()
    assert capsys.readouterr().err.splitlines() == ["3 of 3 slabs done"]


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.Counter(1, "slabs", quiet=True) as counter:
        counter.advance()
    assert capsys.readouterr() == ("", "")
