"""The stand-in for CuPy finds what it is there to find."""

import numpy as np
import pytest
from numba import cuda as numba_cuda

from dtomo.arrays import array_module, on_device
from dtomo.kernels.cuda import compiling
from dtomo.kernels.cuda.compiling import KERNELS, CudaKernel, cuda_kernel


def test_it_refuses_what_cupy_refuses(cupy):
    host, device = np.ones(3, np.float32), cupy.ones(3, np.float32)
    for wrong in (
        lambda: np.asarray(device),
        lambda: device + host,
        lambda: host + device,
        lambda: np.add(device, 1, out=host),
        lambda: np.add(device, 1, where=device > 0),
        lambda: cupy.concatenate([device, host]),
        lambda: device[host > 0],
        lambda: np.add.reduce(device),
    ):
        with pytest.raises((TypeError, AttributeError)):
            wrong()
    with pytest.raises(TypeError):
        device[:] = host


def test_it_does_what_cupy_does(cupy):
    device = cupy.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert isinstance(device.sum(), cupy.ndarray)
    assert isinstance(np.sqrt(device), cupy.ndarray)
    assert np.sum(device, axis=0).shape == (3,)
    assert (device[1, 2] * np.float32(2)).get() == 10
    np.add(device, 1, out=device)
    assert device.get()[0, 0] == 1
    assert on_device(device)
    assert array_module(device, None, 2.0) is cupy
    assert array_module(np.ones(2)) is np
    with pytest.raises(TypeError, match="host"):
        array_module(device, np.ones(2))


def test_kernels_run_on_its_arrays(cupy):
    @cuda_kernel("void(float32[::1], float32)", threads=(4,))
    def scale(values, factor):
        for k in range(numba_cuda.grid(1), values.size, numba_cuda.gridsize(1)):
            values[k] *= factor

    values = cupy.arange(10, dtype=np.float32)
    scale.launch(2, values, 3.0)
    for wrong in (values.astype(np.float64), values.reshape(2, 5), cupy.zeros(20, np.float32)[::2], np.float32(1)):
        with pytest.raises(TypeError, match="No matching definition"):
            scale.launch(2, wrong, 3.0)
    with pytest.raises(TypeError, match="No matching definition"):
        scale.launch(2, values)
    del KERNELS[scale.name]
    assert (values.get() == 3 * np.arange(10)).all()


@pytest.mark.without_simulator
def test_launches_on_the_present_stream(cupy, monkeypatch):
    """The default one by a number that CuPy takes when it is asked for its memory; too large grids are cut."""
    launched = []

    class Compiled:
        def __getitem__(self, configuration):
            return lambda *arguments: launched.append((configuration, arguments))

    monkeypatch.setattr(compiling, "simulated", lambda: False)
    monkeypatch.setattr(compiling.cuda, "external_stream", lambda pointer: f"stream {pointer}", raising=False)
    kernel = CudaKernel(lambda values: None, ["void(int64)"], (32, 8), None)
    monkeypatch.setattr(kernel, "_ready", Compiled)
    kernel.launch((0, 70000), 7)
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.ptr = 4711
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: stream)
    kernel.launch(3, 8, threads=(4,))
    assert launched == [(((1, 65535), (32, 8), "stream 1"), (7,)), (((3,), (4,), "stream 4711"), (8,))]
