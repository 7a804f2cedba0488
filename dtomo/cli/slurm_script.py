"""``dtomo slurm-script``: a batch script that runs ``dtomo recon`` in allocations of Slurm until it is done."""

import inspect
from typing import Annotated, Any

import typer

from dtomo.cli import options
from dtomo.cli.recon import recon
from dtomo.errors import UserError

HERE = ("nodes", "workers", "threads", "memory", "queue", "account", "walltime", "interface", "slurm_extra")
"""Options that say what is asked of Slurm; all others are handed on to ``dtomo recon``."""
_LEFT_OUT = ("cluster", "workers_per_job", "plan", "resume")
"""Options of ``dtomo recon`` that the script takes care of."""
_WORKERS, _THREADS, _MEMORY = 1, 8, "8GB"
_BATCH = "The allocation"


def _settings(
    nodes: Annotated[int, typer.Option(help="Nodes of an allocation.", rich_help_panel=_BATCH)] = 1,
    workers: Annotated[int, typer.Option(help="Workers on each node.", rich_help_panel=_BATCH)] = _WORKERS,
    threads: Annotated[int, typer.Option(help="Threads of each worker.", rich_help_panel=_BATCH)] = _THREADS,
    memory: Annotated[str, typer.Option(help="Limit of each worker.", rich_help_panel=_BATCH)] = _MEMORY,
    gpus: Annotated[
        int | None,
        typer.Option(help="GPUs; the run computes on them, with a worker on each at least.", rich_help_panel=_BATCH),
    ] = None,
    memory_line: Annotated[
        str,
        typer.Option(help="mem, mem-per-cpu, mem-per-gpu, all (of the node) or none.", rich_help_panel=_BATCH),
    ] = "mem",
    queue: options.Queue = None,
    account: options.Account = None,
    walltime: options.Walltime = None,
    interface: options.Interface = None,
    slurm_extra: options.SlurmExtra = None,
) -> None:
    """What is asked of Slurm."""


def slurm_script(context: typer.Context, **given: Any) -> None:
    """Print a Slurm script that reconstructs SCAN into OUT; submit it with sbatch.

    The script runs dtomo recon with the options given here inside one allocation. It stops before the walltime, submits
    itself again and resumes, until the output is complete. Nothing is submitted now.
    """
    from dtomo.distributed.batch import parse_request
    from dtomo.distributed.clusters import parse_memory
    from dtomo.distributed.devices import parse_devices
    from dtomo.distributed.script import Allocation
    from dtomo.distributed.script import slurm_script as script
    from dtomo.io import volume_format
    from dtomo.io.output import progress_folder
    from dtomo.settings import ReconSettings

    own = {name: given.pop(name) for name in _own()}
    overwrite = given.pop("overwrite")
    for name in ("nodes", "workers", "threads"):
        if own[name] < 1:
            raise UserError(f"--{name} is a whole number from 1; got {own[name]}")
    asked = {name.removeprefix("slurm_"): own[name] for name in (*HERE[4:], "gpus", "memory_line")}
    request = parse_request("slurm", {name: value for name, value in asked.items() if value not in (None, ())})
    if request.gpus and own["nodes"] > 1:
        raise UserError("--gpus is for one node: on several, workers would not know their GPUs; leave out --nodes")
    workers = max(own["workers"], request.gpus or 1)
    allocation = Allocation(own["nodes"], workers, own["threads"], parse_memory(own["memory"]), request)
    settings = _checked(ReconSettings, given)
    volume_format(settings.output)
    parse_devices(settings.devices or "")
    output = settings.output.absolute()
    command = ["recon", *_words(context, given)]
    print(script(command, allocation, output, progress_folder(output), overwrite=overwrite), end="")


def _checked(settings_class: Any, given: dict[str, Any]) -> Any:
    """The settings that the options come to, with a scan that is there."""
    known = {name: value for name, value in given.items() if name in settings_class.model_fields and value is not None}
    if "normalized" in given and given["normalized"] is not None:
        known["normalized"] = given["normalized"]
    config = given.get("config")
    if config is None and not {"scan", "output"} <= known.keys():
        raise UserError("dtomo slurm-script takes SCAN and OUT, or --config with both; see dtomo slurm-script --help")
    settings = settings_class.read(config, **known) if config else settings_class(**known)
    if not settings.scan.exists():
        raise UserError(f"{settings.scan} does not exist")
    return settings


def _words(context: typer.Context, given: dict[str, Any]) -> list[str]:
    """The options as they would be typed, with SCAN and OUT first."""
    arguments, words = [], []
    for parameter in context.command.params:
        value = given.get(str(parameter.name))
        if value is None or (value is False and not parameter.secondary_opts):
            continue
        if parameter.param_type_name == "argument":
            arguments.append(str(value))
        elif isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            for one in value if isinstance(value, list | tuple) else [value]:
                words.append(f"{parameter.opts[0]}={one}")
    return arguments + words


def _own() -> list[str]:
    return list(inspect.signature(_settings).parameters)


def _parameters() -> list[inspect.Parameter]:
    """Those of ``dtomo recon``, with what is asked of Slurm in place of where it runs."""
    own = inspect.signature(_settings).parameters
    theirs = [
        parameter
        for name, parameter in inspect.signature(recon).parameters.items()
        if name not in own and name not in _LEFT_OUT
    ]
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    return [context, *(p.replace(kind=p.KEYWORD_ONLY) for p in (*theirs, *own.values()))]


slurm_script.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
slurm_script.__annotations__ = {parameter.name: parameter.annotation for parameter in _parameters()}
