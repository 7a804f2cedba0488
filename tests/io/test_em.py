"""EM files: every type and byte order, headers that are kept, files that are damaged."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.io import convert, create_volume, open_volume
from dtomo.io.em import EmHeader, em_dtype, looks_like_em, read_em, read_em_header, write_em

TYPES = {"int8": 1, "int16": 2, "int32": 4, "float32": 5, "complex64": 8, "float64": 9}
HEADER = EmHeader(b"\1\2", b"a comment".ljust(80, b"."), tuple(range(-20, 20)), bytes(range(256)))


def _volume(dtype: str) -> np.ndarray:
    values = np.random.default_rng(1).integers(-100, 100, (3, 4, 5)).astype(dtype)
    return values + 1j * values[::-1] if dtype == "complex64" else values


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_and_byte_order(dtype, order, tmp_path):
    path = tmp_path / "v.em"
    volume = _volume(dtype).astype(dtype)
    write_em(path, volume, HEADER, order=order)
    raw = path.read_bytes()
    assert len(raw) == 512 + volume.nbytes
    assert (raw[0], raw[3]) == (6 if order == "<" else 5, TYPES[dtype])
    assert np.frombuffer(raw, order + "i4", 3, offset=4).tolist() == [5, 4, 3]
    np.testing.assert_array_equal(np.frombuffer(raw, np.dtype(dtype).newbyteorder(order), offset=512), volume.ravel())
    found, header = read_em(path)
    assert found.dtype == dtype
    assert header == HEADER
    np.testing.assert_array_equal(found, volume)
    opened = open_volume(path)
    assert (opened.format, opened.shape, opened.voxel_size) == ("em", (3, 4, 5), None)
    np.testing.assert_array_equal(opened.array.compute(scheduler="sync"), volume)


@pytest.mark.parametrize(("machine", "order"), [(0, ">"), (1, "<"), (2, ">"), (3, ">"), (4, ">"), (5, ">"), (6, "<")])
def test_the_machine_says_the_byte_order(machine, order, tmp_path):
    path = tmp_path / "v.em"
    write_em(path, _volume("int16"), order=order)
    raw = bytearray(path.read_bytes())
    raw[0] = machine
    path.write_bytes(raw)
    np.testing.assert_array_equal(read_em(path)[0], _volume("int16"))


def test_a_machine_that_is_wrong_gives_way_to_the_size_of_the_file(tmp_path):
    path = tmp_path / "v.em"
    write_em(path, _volume("float32"), order=">")
    raw = bytearray(path.read_bytes())
    raw[0] = 6
    path.write_bytes(raw)
    np.testing.assert_array_equal(read_em(path)[0], _volume("float32"))


def test_written_slab_by_slab(tmp_path):
    volume = _volume("float32")
    writer = create_volume(tmp_path / "w.em", volume.shape, np.float32, slab=1)
    for z in (2, 0, 1):
        writer.write_slab(z, volume[z : z + 1])
    writer.finish()
    np.testing.assert_array_equal(read_em(tmp_path / "w.em")[0], volume)


@pytest.mark.parametrize(("given", "stored"), [("uint8", "int16"), ("uint16", "int32"), ("float16", "float32")])
def test_types_em_lacks_take_the_next_that_holds_them(given, stored, tmp_path):
    assert em_dtype(tmp_path, np.dtype(given)) == stored
    for other in ("int64", "complex128"):
        with pytest.raises(UserError, match="EM has no type"):
            em_dtype(tmp_path, np.dtype(other))


def test_conversion_keeps_values_and_header(tmp_path):
    volume = _volume("float32")
    write_em(tmp_path / "a.em", volume, HEADER, order=">")
    convert(tmp_path / "a.em", tmp_path / "b.em")
    assert read_em_header(tmp_path / "b.em").order == "<"
    assert read_em(tmp_path / "b.em")[1] == HEADER
    convert(tmp_path / "b.em", tmp_path / "c.mrc")
    convert(tmp_path / "c.mrc", tmp_path / "d.em")
    np.testing.assert_array_equal(read_em(tmp_path / "d.em")[0], volume)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw[:100], "truncated: 100 bytes"),
        (lambda raw: raw[:-1], "truncated: 751 bytes where its header asks for 752"),
        (lambda raw: raw[:3] + b"\7" + raw[4:], "type 7"),
        (lambda raw: raw[:4] + b"\0" * 12 + raw[16:], "sizes"),
        (lambda raw: raw[:4] + b"\xff" * 12 + raw[16:], "sizes"),
        (lambda raw: raw[:4] + b"\xff\xff\xff\x7f" * 3 + raw[16:], "truncated"),
    ],
)
def test_damaged_files_are_refused_in_a_sentence(change, words, tmp_path):
    path = tmp_path / "v.em"
    write_em(path, _volume("float32"))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=words):
        read_em(path)
    with pytest.raises(UserError):
        open_volume(path)


def test_what_is_no_em_file_is_not_taken_for_one(tmp_path):
    path = tmp_path / "noise.dat"
    path.write_bytes(np.random.default_rng(0).bytes(4000))
    assert not looks_like_em(path)
    with pytest.raises(UserError, match="there is no file"):
        read_em(tmp_path / "none.em")
    with pytest.raises(UserError, match="z, y, x"):
        write_em(path, np.zeros((3, 3), np.float32))


def test_any_512_bytes_are_read_or_refused(tmp_path):
    random = np.random.default_rng(5)
    path = tmp_path / "fuzz.em"
    write_em(path, _volume("int16"))
    whole, messages = path.read_bytes(), []
    for _ in range(200):
        raw = bytearray(whole)
        for place in random.integers(0, 96, random.integers(1, 6)):
            raw[place] = random.integers(0, 256)
        path.write_bytes(raw[: random.integers(0, len(raw) + 1)])
        try:
            volume, _ = read_em(path)
        except UserError as error:
            messages.append(str(error))
        else:
            assert volume.ndim == 3
    assert len(messages) > 20
    assert not any("\n" in message for message in messages)


def test_an_em_file_is_replaced_when_asked(tmp_path):
    write_em(tmp_path / "a.em", _volume("int16"))
    write_em(tmp_path / "b.em", _volume("float32")[:1])
    with pytest.raises(UserError, match="exists"):
        convert(tmp_path / "a.em", tmp_path / "b.em")
    convert(tmp_path / "a.em", tmp_path / "b.em", overwrite=True)
    np.testing.assert_array_equal(read_em(tmp_path / "b.em")[0], _volume("int16"))
