"""``dtomo simulate ptycho`` and ``dtomo ptycho`` as a user types them."""

import pytest


@pytest.fixture
def scan(here, tmp_path):
    done = here("simulate", "ptycho", "scan.cxi", "--size", 32, "--positions", 40, "--modes", 1)
    assert done.returncode == 0
    assert "40 frames of 32 × 32" in done.stdout
    return tmp_path / "scan.cxi"


def test_from_scan_to_pictures(here, scan, tmp_path):
    done = here("ptycho", scan, "out.h5", "--engine", "adam", "--epochs", 3, "--workers", 1, report=True)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 epochs done, loss" in done.stderr
    assert (tmp_path / "out.h5").is_file()
    assert len(list((tmp_path / "out.h5.pictures").glob("*.png"))) >= 5
    page = (tmp_path / "out.h5.report.html").read_text("utf-8")
    assert all(words in page for words in ("Object, phase", "Probe modes, magnitude", "Convergence"))
    again = here("ptycho", "--config", "out.h5.run.yaml", "--epochs", 1, "--overwrite", "--no-pictures", "-q")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_a_plan_stops_there(here, scan, tmp_path):
    done = here("ptycho", scan, "out.h5", "--plan")
    assert done.returncode == 0
    assert "time: about" in done.stdout
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "SCAN and OUT"),
        (("nowhere.cxi", "out.h5"), "nowhere.cxi"),
        (("SCAN", "out.txt"), ".h5"),
        (("SCAN", "out.h5", "--engine", "magic"), "--engine"),
        (("SCAN", "out.h5", "--refine", "luck"), "--refine"),
        (("SCAN", "out.h5", "--option", "speed"), "--option"),
        (("SCAN", "out.h5", "--batch", "0"), "--batch"),
        (("SCAN", "out.h5", "--mask", "nowhere.npy"), "nowhere.npy"),
        (("SCAN", "SCAN"), "input"),
    ],
)
def test_wrong_words_are_one_sentence_and_exit_code_2(here, scan, tmp_path, words, part):
    before = sorted(path.name for path in tmp_path.iterdir())
    done = here("ptycho", *(scan if word == "SCAN" else word for word in words), *(("--workers", 1) if words else ()))
    assert done.returncode == 2
    assert part in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_wrong_sign_of_the_positions_is_found_and_named(here, tmp_path):
    assert here("simulate", "ptycho", "scan.cxi", "--size", 64, "--positions", 100).returncode == 0
    words = ("ptycho", "scan.cxi", "out.h5", "--epochs", 1, "--workers", 1, "--check-orientation", "--no-pictures")
    wrong = here(*words, "--flip-rows")
    assert wrong.returncode == 2
    assert "fit the frames better if they are turned by --flip-rows" in wrong.stderr
    assert not (tmp_path / "out.h5").exists()
    right = here(*words, "--defocus", 0)
    assert right.returncode == 0
    assert "as they are" in right.stderr
