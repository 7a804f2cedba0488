"""Projection and back projection of a cone beam by RTK or MBIRJAX, run by `benchmarks.rays` with their interpreters.

Reads a task (JSON) from the command line: package, files of the volume ``(z, y, x)`` and where to put projections
``(view, row, column)``, angles in degrees, distances, size of pixels and voxels, cores, repeats. Prints the seconds of
each repeat, forward and backward.

RTK turns about y: its volume, as an array (z, y, x), is ours with y downwards as -z and z as y. Its Joseph
back projection is that of its forward projection (Rit et al., RTK). MBIRJAX has separable footprints; its volume is
(y, x, z) of its own orientation, so that only times are compared.
"""

import json
import sys
import time

import numpy as np


def rtk(task, volume):
    """Joseph's method of itk-rtk."""
    import itk
    from itk import RTK as rtk

    itk.MultiThreaderBase.SetGlobalDefaultNumberOfThreads(task["cores"])
    itk.MultiThreaderBase.SetGlobalMaximumNumberOfThreads(task["cores"])
    kind = itk.Image[itk.F, 3]
    geometry = rtk.ThreeDCircularProjectionGeometry.New()
    for angle in task["angles"]:
        geometry.AddProjection(task["source_axis"], task["source_detector"], angle)
    depth, height, width = volume.shape
    rows, columns, pixel, voxel = task["rows"], task["columns"], task["pixel"], task["voxel"]
    turned = itk.image_from_array(np.ascontiguousarray(np.moveaxis(volume, 0, 1)[::-1]))
    turned.SetSpacing([voxel] * 3)
    turned.SetOrigin([-(width - 1) / 2 * voxel, -(depth - 1) / 2 * voxel, -(height - 1) / 2 * voxel])

    def empty(size, origin, spacing):
        return rtk.constant_image_source(origin=origin, spacing=spacing, size=size, ttype=[kind])

    corner = [-(columns - 1) / 2 * pixel, -(rows - 1) / 2 * pixel, 0.0]
    times, found = {"forward": [], "backward": []}, None
    for _ in range(task["repeats"]):
        stack = empty([columns, rows, len(task["angles"])], corner, [pixel, pixel, 1.0])
        start = time.perf_counter()
        forward = rtk.JosephForwardProjectionImageFilter[kind, kind].New()
        forward.SetInput(0, stack)
        forward.SetInput(1, turned)
        forward.SetGeometry(geometry)
        forward.Update()
        times["forward"].append(time.perf_counter() - start)
        found = forward.GetOutput()
        nothing = empty([width, depth, height], list(turned.GetOrigin()), [voxel] * 3)
        start = time.perf_counter()
        back = rtk.JosephBackProjectionImageFilter[kind, kind].New()
        back.SetInput(0, nothing)
        back.SetInput(1, found)
        back.SetGeometry(geometry)
        back.Update()
        times["backward"].append(time.perf_counter() - start)
    np.save(task["out"], itk.array_from_image(found))
    return times


def mbirjax(task, volume):
    """Separable footprints of MBIRJAX."""
    import jax
    import mbirjax

    pixel = task["pixel"]
    shape = (len(task["angles"]), task["rows"], task["columns"])
    model = mbirjax.ConeBeamModel(
        shape, np.deg2rad(task["angles"]), task["source_detector"] / pixel, task["source_axis"] / pixel
    )
    model.set_params(delta_voxel=task["voxel"] / pixel, recon_shape=volume.shape[1:] + volume.shape[:1])
    given = jax.numpy.asarray(np.moveaxis(volume, 0, -1))
    times = {"forward": [], "backward": []}
    stack = jax.block_until_ready(model.forward_project(given))  # compiles
    jax.block_until_ready(model.back_project(stack))
    for _ in range(task["repeats"]):
        start = time.perf_counter()
        stack = jax.block_until_ready(model.forward_project(given))
        times["forward"].append(time.perf_counter() - start)
        start = time.perf_counter()
        jax.block_until_ready(model.back_project(stack))
        times["backward"].append(time.perf_counter() - start)
    np.save(task["out"], np.asarray(stack))
    return times


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    times = {"rtk": rtk, "mbirjax": mbirjax}[task["package"]](task, np.load(task["volume"]))
    print(json.dumps(times))
