"""A user's own model, fitted over all devices."""

from dtomo.fitting.callbacks import Callback, EarlyStopping, JsonLines, MLflow, TensorBoard
from dtomo.fitting.fits import fit
from dtomo.fitting.history import Epoch, History
from dtomo.fitting.model import Model
from dtomo.fitting.operators import OperatorModel
from dtomo.fitting.optimizers import LBFGS, SGD, Adam, AdamW, Optimizer

__all__ = [
    "LBFGS",
    "SGD",
    "Adam",
    "AdamW",
    "Callback",
    "EarlyStopping",
    "Epoch",
    "History",
    "JsonLines",
    "MLflow",
    "Model",
    "OperatorModel",
    "Optimizer",
    "TensorBoard",
    "fit",
]
