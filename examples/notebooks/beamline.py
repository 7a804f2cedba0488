# %% [markdown]
# # A scan from a beamline
#
# From raw counts to a volume, with a simulated scan that has what real scans have: photon noise, rings, dead pixels,
# single bright values, and an axis of rotation that is not in the middle. The same from the command line:
# `docs/start/beamline.md`.

# %%
import matplotlib.pyplot as plt
import numpy as np

import dtomo
from dtomo import prep

truth = dtomo.simulate.simulate_scan("scan.h5", size=96, rows=16, overwrite=True)
scan = dtomo.open("scan.h5")  # lazy: nothing but metadata is read
print(scan.shape, "projections, rows, columns;", scan.pixel_size, "µm;", scan.energy, "keV")

# %% [markdown]
# ## From counts to line integrals
#
# Flats and darks, single bright values, the logarithm, and columns that answer differently (rings).

# %%
raw = scan.read()
transmission, _ = prep.normalize(raw.projections, raw.flats, raw.darks)
striped, _ = prep.minus_log(transmission)
clean = prep.remove_stripes(prep.minus_log(prep.remove_outliers(transmission, threshold=0.2)[0])[0])

figure, places = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
shown = {"counts of a view": raw.projections[0], "sinogram": striped[:, 8], "and without stripes": clean[:, 8]}
for place, (name, image) in zip(places, shown.items()):
    place.imshow(image, cmap="gray", aspect="auto")
    place.set(title=name, xlabel="column")

# %% [markdown]
# ## Reconstruct
#
# Arrays go in and come out. The axis is known here; `dtomo center scan.h5` finds it in a file.

# %%
geometry = dtomo.ParallelBeam(scan.angles, columns=scan.shape[2], center=truth.center)
volume = dtomo.recon.fbp(clean, geometry)
solved = dtomo.recon.cgls(clean, geometry, iterations=15)
true = dtomo.simulate.truth_slice("scan.h5", 8, width=volume.shape[2])

figure, places = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
for place, (name, image) in zip(places, {"truth": true, "fbp": volume[8], "cgls": solved[8]}.items()):
    error = np.sqrt(np.mean((image - true) ** 2) / np.mean(true**2))
    place.imshow(image, cmap="gray", vmin=0, vmax=np.percentile(true, 99.8))
    place.set(title=f"{name}, relative error {error:.2f}", xlabel="x [voxel]", ylabel="y [voxel]")
    print(name, round(float(error), 3))
assert error < 0.5

# %% [markdown]
# Volumes larger than memory go from disk to disk: `dtomo recon scan.h5 volume.zarr`, or
# `dtomo.recon.run(dtomo.settings.ReconSettings(scan="scan.h5", output="volume.zarr"))`, slab by slab on all cores.
