"""What may be written where: refused before anything is touched."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile

from dtomo.errors import UserError
from dtomo.io import check_output, create_volume, write_dxchange
from dtomo.io.output import clear, mark_folder, progress_folder


def _tree(folder):
    return sorted((str(item), item.lstat().st_mtime_ns) for item in folder.rglob("*"))


def _refused(match, folder, path, **options):
    before = _tree(folder)
    with pytest.raises(UserError, match=match) as caught:
        check_output(path, **options)
    assert "\n" not in str(caught.value)
    assert _tree(folder) == before


@pytest.fixture
def scan(tmp_path):
    (tmp_path / "raw").mkdir()
    with h5py.File(tmp_path / "raw" / "scan.h5", "w") as file:
        file["x"] = 1
    return tmp_path / "raw" / "scan.h5"


def test_a_new_output_is_let_pass_and_nothing_made(tmp_path, scan):
    before = _tree(tmp_path)
    assert check_output(tmp_path / "out.zarr", inputs=[scan], bytes_needed=1000) == tmp_path.resolve() / "out.zarr"
    assert _tree(tmp_path) == before


def test_input_is_output_by_any_name(tmp_path, scan):
    (tmp_path / "link.h5").symlink_to(scan)
    os.link(scan, tmp_path / "hard.h5")
    (tmp_path / "folder").symlink_to(scan.parent)
    names = [scan, scan.parent / ".." / "raw" / "scan.h5", tmp_path / "link.h5", tmp_path / "hard.h5"]
    for name in [*names, tmp_path / "folder" / "scan.h5"]:
        _refused("is the input itself", tmp_path, name, inputs=[scan], overwrite=True)
    _refused("is the input itself", tmp_path, scan, inputs=[tmp_path / "link.h5"], overwrite=True)


def test_output_that_holds_the_input_or_lies_in_it(tmp_path, scan):
    _refused("holds the input", tmp_path, scan.parent, inputs=[scan], overwrite=True)
    _refused("holds the input", tmp_path, scan.parent / ".." / "raw", inputs=[scan], overwrite=True)
    _refused("lies inside the input", tmp_path, scan.parent / "out.tif", inputs=[scan.parent])
    create_volume(tmp_path / "in.zarr", (2, 2, 2))
    _refused("lies inside the input", tmp_path, tmp_path / "in.zarr" / "out.zarr", inputs=[tmp_path / "in.zarr"])


def test_what_dtomo_did_not_write_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.zarr").mkdir()
    (tmp_path / "thesis.zarr" / "chapter.txt").write_text("all my work")
    (tmp_path / "notes.mrc").write_text("text")
    _refused("folder that dtomo did not write", tmp_path, tmp_path / "thesis.zarr", overwrite=True)
    _refused("file that dtomo did not write", tmp_path, tmp_path / "notes.mrc", overwrite=True)
    _refused("not a name", tmp_path, ".", overwrite=True)
    _refused("not a name|exists|holds", tmp_path, "/", overwrite=True)
    with pytest.raises(UserError, match="not removed"):
        clear(tmp_path / "thesis.zarr")
    assert (tmp_path / "thesis.zarr" / "chapter.txt").exists()


def test_existing_files_need_overwrite(tmp_path, scan):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((3, 3)))
    for path in (scan, tmp_path / "a.tif"):
        _refused("exists.*--overwrite", tmp_path, path)
        check_output(path, overwrite=True)
    _refused("nothing to resume", tmp_path, scan, resume=True)
    (tmp_path / "empty.zarr").mkdir()
    check_output(tmp_path / "empty.zarr")


@pytest.mark.parametrize("name", ["v.mrc", "v.tif", "v.h5"])
@pytest.mark.parametrize("inside", [None, "a.txt", ".dtomo"])
def test_a_folder_is_no_file_to_be_written(name, inside, tmp_path):
    (tmp_path / name).mkdir()
    if inside == ".dtomo":
        (tmp_path / name / inside).mkdir()
    elif inside:
        (tmp_path / name / inside).write_text("text")
    for choice in ({}, {"overwrite": True}, {"resume": True}):
        _refused("is a folder, but the output is one file", tmp_path, tmp_path / name, **choice)


def test_a_folder_of_a_run_that_writes_many_files(tmp_path):
    """Its name has no suffix; only what dtomo wrote is replaced."""
    target = tmp_path / "run"
    check_output(target)
    target.mkdir()
    check_output(target)
    (target / "notes.txt").write_text("mine")
    _refused("exists; give another name", tmp_path, target)
    _refused("dtomo did not write", tmp_path, target, overwrite=True)
    mark_folder(target, {"kind": "test"})
    check_output(target, overwrite=True)
    clear(target)
    assert not target.exists()


def test_a_stray_file_among_the_progress_is_named(tmp_path):
    create_volume(tmp_path / "out.zarr", (16, 8, 8), np.float32)
    (progress_folder(tmp_path / "out.zarr") / ".DS_Store").write_text("x")
    with pytest.raises(UserError, match=r"also holds .*\.DS_Store.*, not written by dtomo; move that away"):
        check_output(tmp_path / "out.zarr", resume=True)


def test_missing_folder_and_no_space(tmp_path):
    _refused("does not exist; create it first", tmp_path, tmp_path / "no" / "out.zarr")
    _refused(r"needs 1e\+06 GB but .* GB free", tmp_path, tmp_path / "out.zarr", bytes_needed=10**15)


@pytest.mark.parametrize("folder", ["/proc", "/sys"])
def test_folders_that_cannot_be_written(folder):
    if not Path(folder).is_dir():
        pytest.skip(f"no {folder} here")
    with pytest.raises(UserError, match="refuses new files"):
        check_output(Path(folder) / "out.zarr")
    with pytest.raises(UserError, match="refuses new files"):
        create_volume(Path(folder) / "out.mrc", (2, 2, 2))
    with pytest.raises(UserError, match="refuses new files"):
        write_dxchange(
            Path(folder) / "s.h5",
            frames=[],
            shape=(1, 2, 2),
            dtype="u2",
            flats=None,
            darks=None,
            angles=[0.0],
        )


def test_a_dangling_link_is_followed(tmp_path):
    (tmp_path / "link.zarr").symlink_to(tmp_path / "real.zarr")
    assert check_output(tmp_path / "link.zarr") == tmp_path.resolve() / "real.zarr"
