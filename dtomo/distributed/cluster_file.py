"""The YAML file that describes a cluster."""

import re
from pathlib import Path
from typing import Any

import yaml

from dtomo.errors import UserError, shown
from dtomo.yaml_text import load_yaml

BATCH_SYSTEMS = ("slurm", "pbs", "lsf", "sge", "oar", "moab", "htcondor")
"""Batch systems that dask-jobqueue knows; the file's key of this name holds what is asked of them."""

DEVICE_KEYS = ("devices", "workers_per_device", "device_memory_limit", "rmm_pool_size", "protocol")
"""Keys for workers on this machine that own CUDA devices."""

_YAML_KEYS = ("cluster", "address", "workers", "threads", "memory", "dashboard", *DEVICE_KEYS)
_DASHBOARD = re.compile(r"[\w.-]*:[0-9]{1,5}", re.ASCII)


def read_cluster_file(path: Path) -> dict[str, Any]:
    """What a YAML file asks for, by key; ``address`` becomes ``cluster``.

    Raises
    ------
    UserError
        A file that cannot be read, is not YAML, or has a key that is not known or does not fit.
    """
    try:
        read = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not text"
        raise UserError(f"cannot read the cluster file {path}: {reason}") from error
    except yaml.YAMLError as error:
        raise UserError(f"the cluster file {path} is not valid YAML") from error
    if not isinstance(read, dict):
        raise UserError(f"the cluster file {path} must hold keys and values ({', '.join(_YAML_KEYS)})")
    if "address" in read and "cluster" in read:
        raise UserError(f"the cluster file {path} has both cluster and address; give one of them")
    if "address" in read:
        read["cluster"] = read.pop("address")
    batch = [str(read.get("cluster"))] if read.get("cluster") in BATCH_SYSTEMS else []
    unknown = sorted(str(key) for key in read if key not in (*_YAML_KEYS, *batch))
    if unknown:
        known = ", ".join((*_YAML_KEYS, *batch))
        raise UserError(f"the cluster file {path} has unknown keys {shown(', '.join(unknown))}; known are {known}")
    for name in batch:
        if not isinstance(read.get(name) or {}, dict):
            raise UserError(f"the key {name} of the cluster file {path} must hold keys and values")
    dashboard = read.get("dashboard")
    if dashboard is not None and not (isinstance(dashboard, str) and _DASHBOARD.fullmatch(dashboard)):
        raise UserError(f"the key dashboard of the cluster file {path} is text such as ':8787', or null for none")
    return read
