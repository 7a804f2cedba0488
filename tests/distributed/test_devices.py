"""Lists of devices: what is one, what the environment allows, and what each worker's environment says."""

import pytest

from dtomo.distributed.devices import (
    OWN_DEVICE,
    POOL,
    check_visible,
    described,
    device_environments,
    owned,
    parse_devices,
    same_device,
    visible_devices,
)
from dtomo.errors import UserError

GPU = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
MIG = "MIG-41b3359c-e721-56e5-8009-12e5797ed514"
OLD_MIG = f"MIG-{GPU}/1/0"


@pytest.fixture(autouse=True)
def _environment_of_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUPY_GPU_MEMORY_LIMIT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ("3,1", ("3", "1")),
        ("0,0,1", ("0", "0", "1")),
        (" 07 , 1", ("7", "1")),
        (GPU, (GPU,)),
        ("GPU-8932f937", ("GPU-8932f937",)),
        (f"{MIG},{OLD_MIG}", (MIG, OLD_MIG)),
        ("", ()),
        ("  ", ()),
        (2, ("2",)),
        ([3, "1"], ("3", "1")),
        ([], ()),
    ],
)
def test_lists_of_devices(given, devices):
    assert parse_devices(given) == devices


@pytest.mark.parametrize(
    "given",
    [
        "0,,1",
        "-1",
        "foo",
        "GPU-",
        "MIG-",
        "gpu-8932f937",
        "0,1,",
        ",",
        "1.5",
        "0x1",
        "²",
        "99999",
        "GPU-xyz",
        "0 1",
        "0;rm -rf",
        "GPU-" + "a" * 500,
        True,
        [0, None],
        [[0]],
        [1.5],
        {"a": 1},
    ],
)
def test_what_is_no_list_of_devices_is_refused(given):
    with pytest.raises(UserError, match="--devices takes indices and identifiers") as refused:
        parse_devices(given)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize(
    ("text", "devices"),
    [("3,1", ("3", "1")), (f"{GPU}", (GPU,)), ("", ()), ("-1", ()), ("NoDevFiles", ()), ("0,2,-1,1", ("0", "2"))],
)
def test_the_environment_is_read_as_cuda_does(monkeypatch, text, devices):
    assert visible_devices() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert visible_devices() == devices


@pytest.mark.parametrize(("text", "devices"), [("3,1", ["1"]), (GPU, ["GPU-8932f937"]), ("", ["5"])])
def test_devices_that_the_environment_allows(monkeypatch, text, devices):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    check_visible(devices)


@pytest.mark.parametrize(
    ("text", "devices"), [("3,1", ["3", "0"]), (GPU, ["0"]), (GPU, [MIG]), ("NoDevFiles", ["0"]), ("0", [GPU])]
)
def test_devices_that_the_environment_does_not_list_are_refused(monkeypatch, text, devices):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    with pytest.raises(UserError, match=f"names {devices[-1]}, but CUDA_VISIBLE_DEVICES .* allows only {text}"):
        check_visible(devices)


def test_identifiers_may_be_given_by_their_beginning():
    assert same_device(GPU, "GPU-8932")
    assert same_device(GPU.upper(), GPU)
    assert not same_device("1", "11")
    assert not same_device(GPU, MIG)


def test_worker_i_owns_device_i_modulo_their_number():
    assert owned(("3", "1"), 5) == [("3", 3), ("1", 2), ("3", 3), ("1", 2), ("3", 3)]
    assert owned(("0", "0", "1"), 3) == [("0", 2), ("0", 2), ("1", 1)]
    assert owned((GPU, "GPU-8932f937"), 2) == [(GPU, 2), ("GPU-8932f937", 2)]


def test_environments_name_one_device_each_and_share_its_memory_out():
    first, second, third = device_environments(("0", "0", "1"), 3, memory=1000, pool=600)
    assert first == second
    assert first == {
        OWN_DEVICE: "0",
        "CUDA_VISIBLE_DEVICES": "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUPY_GPU_MEMORY_LIMIT": "500",
        POOL: "300",
    }
    assert third["CUDA_VISIBLE_DEVICES"] == "1"
    assert (third["CUPY_GPU_MEMORY_LIMIT"], third[POOL]) == ("1000", "600")


def test_shares_without_a_given_limit_are_fractions_of_the_device():
    limits = [one.get("CUPY_GPU_MEMORY_LIMIT") for one in device_environments(("0", "0", "0", "1"), 4)]
    assert limits == ["33.33%", "33.33%", "33.33%", None]


def test_the_users_order_and_limit_hold(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "10%")
    for variables in device_environments(("0", "0"), 2):
        assert variables["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
        assert "CUPY_GPU_MEMORY_LIMIT" not in variables


def test_no_list_leaves_the_environment_and_an_empty_one_hides_all_devices():
    assert device_environments(None, 2) == [{}, {}]
    assert device_environments((), 2) == [{OWN_DEVICE: "", "CUDA_VISIBLE_DEVICES": ""}] * 2


def test_devices_are_said():
    assert described(("3", "1"), 2) == "worker 0 on 3, worker 1 on 1"
    assert described((), 2) == "none listed, computing on the CPU"
    assert described(("0",), 20).endswith("worker 7 on 0 and so on for 20 workers")
