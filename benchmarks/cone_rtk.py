"""FDK of RTK (itk-rtk) on the CPU, run by `benchmarks.cone` with the interpreter of an environment that has it.

Reads a task (JSON) from the command line: file of projections ``(view, row, column)``, angles in degrees, distances,
size of pixels and voxels, shape, cores, repeats, where to put the volume. Prints the seconds of each repeat.

RTK turns about y: its volume, as an array (z, y, x), is ours with y downwards as -z and z as y.
"""

import json
import sys
import time

import itk
import numpy as np
from itk import RTK as rtk


def main() -> None:
    task = json.loads(sys.argv[1])
    itk.MultiThreaderBase.SetGlobalDefaultNumberOfThreads(task["cores"])
    itk.MultiThreaderBase.SetGlobalMaximumNumberOfThreads(task["cores"])
    kind = itk.Image[itk.F, 3]
    projections = itk.image_from_array(np.load(task["projections"]))
    _views, rows, columns = np.load(task["projections"], mmap_mode="r").shape
    pixel, voxel = task["pixel"], task["voxel"]
    projections.SetSpacing([pixel, pixel, 1.0])
    projections.SetOrigin([-(columns - 1) / 2 * pixel, -(rows - 1) / 2 * pixel, 0.0])
    geometry = rtk.ThreeDCircularProjectionGeometry.New()
    for angle in task["angles"]:
        geometry.AddProjection(task["source_axis"], task["source_detector"], angle)
    depth, height, width = task["shape"]
    seconds = []
    for _ in range(task["repeats"]):
        volume = rtk.constant_image_source(
            origin=[-(width - 1) / 2 * voxel, -(depth - 1) / 2 * voxel, -(height - 1) / 2 * voxel], spacing=[voxel] * 3,
            size=[width, depth, height], ttype=[kind],
        )  # fmt: skip
        start = time.perf_counter()
        fdk = rtk.FDKConeBeamReconstructionFilter[kind].New()
        fdk.SetInput(0, volume)
        fdk.SetInput(1, projections)
        fdk.SetGeometry(geometry)
        fdk.Update()
        seconds.append(time.perf_counter() - start)
    found = np.moveaxis(itk.array_from_image(fdk.GetOutput())[::-1], 1, 0)
    np.save(task["out"], found)
    print(json.dumps({"seconds": seconds, "version": itk.Version.GetITKVersion()}))


main()
