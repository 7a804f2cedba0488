# %% [markdown]
# # Cryo-ET: align and average subtomograms
#
# 24 simulated particles with noise, a missing wedge, and orientations in their list that are 8 degrees off. Step by
# step and from the command line: `docs/start/cryo-et.md`.

# %%
import matplotlib.pyplot as plt
import numpy as np

import dtomo
from dtomo.io import open_volume
from dtomo.io.particles import read_particles
from dtomo.settings import AlignSettings
from dtomo.simulate.particles import simulate_particles

truth = simulate_particles(
    "sim", count=24, box=32, pixel_size=8.0, snr=0.5, angle_error=8.0, shift_error=1.0, overwrite=True
)
settings = AlignSettings(
    scan="sim/particles.xml",
    output="refined",
    pixel_size=8.0,
    particle_diameter=180.0,
    iterations=2,
    workers=1,
    threads=1,
)
run = dtomo.subtomo.run(settings, overwrite=True, quiet=True)

# %% [markdown]
# ## See whether it is right
#
# The simulation wrote the true orientations.

# %%
true = read_particles("sim/truth.xml")
off = {}
for name in ("sim/particles.xml", "refined/particles.xml"):
    turn = read_particles(name).rotations @ true.rotations.transpose(0, 2, 1)
    off[name] = np.degrees(np.arccos(np.clip((np.trace(turn, axis1=1, axis2=2) - 1) / 2, -1, 1)))
    print(name, "off by", np.median(off[name]).round(1), "degrees (median)")
assert np.median(off["refined/particles.xml"]) < np.median(off["sim/particles.xml"])

# %% [markdown]
# ## The average and its resolution

# %%
average, first, second = (open_volume(f"refined/{name}.mrc").source.read() for name in ("average", "half-1", "half-2"))
particle = open_volume("sim/particles/particle_00000.mrc").source.read()
curve = dtomo.subtomo.half_curve(first, second, pixel_size=8.0).unmasked

figure, places = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
shown = {"the map": truth.reference, "one particle": particle, "the average": average}
for place, (name, image) in zip(places, shown.items()):
    place.imshow(image[16], cmap="gray")
    place.set(title=name, xlabel="x [voxel]", ylabel="y [voxel]")
places[3].plot(curve.frequency, curve.correlation)
places[3].axhline(0.143, color="gray", linewidth=0.8)
places[3].set(xlabel="spatial frequency [1/Å]", ylabel="FSC of the halves")
