# %% [markdown]
# # Ptychography
#
# Object and probe from diffraction frames: 100 simulated frames of 48 × 48 pixels. Step by step and from the command
# line: `docs/start/ptychography.md`.

# %%
import matplotlib.pyplot as plt
import numpy as np

import dtomo
from dtomo.ptycho.gauge import aligned, error

truth = dtomo.simulate.simulate_ptycho("scan.cxi", size=48, positions=100, modes=1, photons=1e6, overwrite=True)
scan = dtomo.ptycho.open("scan.cxi")
result = dtomo.ptycho.reconstruct(scan, epochs=30, seed=0)
print("object", result.object.shape, "probe", result.probe.shape, "loss", result.history[-1])

# %% [markdown]
# ## See whether it is right
#
# `aligned` takes off what no measurement can tell: a constant phase, a ramp of it, and a shift of object and probe
# together.

# %%
middle = slice(24, -24), slice(24, -24)  # where frames overlap
found = result.transmission[0, 0]
true = truth.object_at(result.positions, found.shape)[middle]
off = error(found[middle], true)
found = aligned(found[middle], true)
print("relative error of the object", round(float(off), 3))
assert off < 0.3

figure, places = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
places[0].imshow(np.log10(1 + truth.counts(50)), cmap="magma")
places[1].imshow(np.abs(result.probe[0]), cmap="gray")
places[2].imshow(np.angle(true), cmap="gray")
places[3].imshow(np.angle(found), cmap="gray")
names = "a frame, log10(1 + counts)", "probe found", "phase of the true object", "phase found"
for place, name in zip(places, names):
    place.set(title=name, xlabel="column", ylabel="row")

# %%
figure, place = plt.subplots(figsize=(6, 3), layout="constrained")
place.semilogy(1 + np.arange(len(result.history)), result.history)
place.set(xlabel="epoch", ylabel="loss")
