# %% [markdown]
# # A model of your own
#
# `dtomo.fit` fits any object with parameters and a gradient, on samples of which some are held out. Step by step, and
# on several workers: `docs/start/own-model.md`.

# %%
import matplotlib.pyplot as plt
import numpy as np

import dtomo


class Decay:
    """Counts a · exp(−b t), by least squares."""

    def __init__(self):
        self.parameters = {"a": np.array(1.0), "b": np.array(0.1)}

    def loss_and_gradient(self, parameters, batch):
        times, counts = batch
        shape = np.exp(-parameters["b"] * times)
        off = parameters["a"] * shape - counts
        slope = {"a": 2 * np.sum(off * shape), "b": -2 * np.sum(off * parameters["a"] * times * shape)}
        return np.sum(off**2), len(times), slope  # sums, never means


# %% [markdown]
# A gradient that is wrong goes nowhere: compare it with differences of the loss first.

# %%
rng = np.random.default_rng(0)
times = rng.uniform(0, 10, 1003)
counts = 5 * np.exp(-0.3 * times) + 0.1 * rng.normal(size=1003)

model, step = Decay(), 1e-6
_, _, gradient = model.loss_and_gradient(model.parameters, (times, counts))
for name in ("a", "b"):
    moved = [{**model.parameters, name: model.parameters[name] + sign * step} for sign in (1, -1)]
    above, below = (model.loss_and_gradient(parameters, (times, counts))[0] for parameters in moved)
    print(name, "gradient", gradient[name], "difference", (above - below) / (2 * step))
    assert np.isclose(gradient[name], (above - below) / (2 * step), rtol=1e-4)

# %% [markdown]
# ## Fit

# %%
history = dtomo.fit(model, (times, counts), optimizer="lbfgs", batch=None, epochs=5, validation=0.1)
print("a", model.parameters["a"].round(3), "b", model.parameters["b"].round(4), "(true: 5 and 0.3)")
assert abs(model.parameters["b"] - 0.3) < 0.01

# %%
figure, places = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
line = np.linspace(0, 10, 200)
places[0].plot(times, counts, ".", color="lightgray", label="samples")
places[0].plot(line, model.parameters["a"] * np.exp(-model.parameters["b"] * line), label="fitted")
places[0].set(xlabel="time", ylabel="counts")
places[0].legend()
places[1].semilogy([1 + epoch for epoch in range(len(history))], [one.validation for one in history], "o-")
places[1].set(xlabel="epoch", ylabel="loss of what was held out")
