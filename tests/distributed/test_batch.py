"""What is asked of batch systems: times, memory, directives, environment; and the scripts that come of it."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtomo.distributed.batch import (
    NANNY,
    BatchRequest,
    job_memory,
    jobs_for,
    lifetime_of,
    memory_directives,
    parse_request,
    parse_walltime,
    walltime_text,
)
from dtomo.distributed.clusters import Resources
from dtomo.distributed.configuration import CONFIGURATION
from dtomo.errors import UserError

jobqueue = pytest.importorskip("dask_jobqueue")
from dtomo.distributed.slurm import job_script, site_settings  # noqa: E402

SYSTEMS = ("slurm", "pbs", "lsf", "sge", "oar", "moab", "htcondor")


def wanted(kind: str = "slurm", workers: int = 2, threads: int = 4, memory: int = 12_000_000_000) -> Resources:
    return Resources(workers, threads, memory, kind=kind)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("02:00:00", 7200),
        ("1-12:00:00", 129600),
        ("2-0", 172800),
        ("1-02:30", 95400),
        ("90", 5400),
        ("90:30", 5430),
        ("2h", 7200),
        ("45 min", 2700),
        ("1.5h", 5400),
        ("120s", 120),
    ],
)
def test_times_as_slurm_writes_them(text: Any, seconds: int) -> None:
    assert parse_walltime(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "59s", "-1", "1:2:3:4", "soon", "1-", "-", "00:00:10", "99:99:99", "1-25", "1:60:00", "9" * 40]
)
def test_other_times_are_refused(text: Any) -> None:
    with pytest.raises(UserError, match="--walltime is a time such as 02:00:00"):
        parse_walltime(text)


@pytest.mark.parametrize("value", [43200, True, None, 1.5])
def test_numbers_that_yaml_makes_of_times_are_refused(value: Any) -> None:
    with pytest.raises(UserError, match="in quotes, since YAML reads 12:00:00 as a number"):
        parse_walltime(value)


def test_times_in_the_words_of_the_batch_system() -> None:
    assert walltime_text(95430) == "26:30:30"
    assert walltime_text(5430, "lsf") == "01:31"
    for seconds in (60, 3599, 3600, 360000):
        assert parse_walltime(walltime_text(seconds)) == seconds


@pytest.mark.parametrize("walltime", [60, 120, 300, 1800, 86400])
def test_workers_retire_before_the_walltime(walltime: int) -> None:
    lifetime, stagger = lifetime_of(BatchRequest(), walltime)
    assert lifetime > stagger
    assert walltime / 3 < lifetime
    assert walltime - 300 - 150 <= lifetime + stagger <= walltime - 20


def test_a_lifetime_beyond_the_walltime_is_refused() -> None:
    assert lifetime_of(BatchRequest(lifetime=600), 1800)[0] == 600
    with pytest.raises(UserError, match="do not fit into a walltime of 1800 s"):
        lifetime_of(BatchRequest(lifetime=1800), 1800)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queues": "x"}, "slurm has no option queues"),
        ({"queue": "two words"}, "--queue is one word"),
        ({"queue": "a\n#SBATCH --exclusive"}, "--queue is one word"),
        ({"account": "-x"}, "--account is one word"),
        ({"interface": "lo; rm"}, "--interface is one word"),
        ({"walltime": "later"}, "--walltime is a time"),
        ({"extra": ["--qos=a\n--exclusive"]}, "--slurm-extra is a directive in one line"),
        ({"extra": 3}, "--slurm-extra is a directive in one line"),
        ({"workers_per_job": 0}, "workers_per_job of slurm is a whole number"),
        ({"gpus": True}, "gpus of slurm is a whole number"),
        ({"memory_line": "some"}, "memory_line is mem"),
        ({"memory_line": "mem-per-gpu"}, "needs gpus"),
        ({"extra": ["--mem=1G", "--mem-per-cpu=1G"]}, "not both"),
    ],
)
def test_requests_that_do_not_fit_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_request("slurm", options)


def test_jobs_are_alike_and_enough() -> None:
    assert jobs_for(wanted(workers=5), BatchRequest(workers_per_job=2), {}) == (3, 2)
    assert jobs_for(wanted(workers=1), BatchRequest(workers_per_job=4), {}) == (1, 1)
    assert jobs_for(wanted(workers=4), BatchRequest(), {"processes": 4}) == (1, 4)


@pytest.mark.parametrize("kind", SYSTEMS)
def test_scripts_of_all_batch_systems(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dask

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = {} if kind == "htcondor" else {"walltime": "02:00:00", "queue": "long"}
    with dask.config.set({"jobqueue.htcondor.disk": "1GB", "jobqueue.oar.memory-per-core-property-name": "memcore"}):
        script = job_script(wanted(kind), {**asked, "workers_per_job": 2})
    if kind != "htcondor":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        assert "long" in script
        assert ("02:00" if kind == "lsf" else "02:00:00") in script
    assert "--nthreads 1 " in script
    assert "--nworkers 2 " in script
    assert f"--memory-limit {12_000_000_000}B" in script
    assert "export DTOMO_THREADS=4" in script
    assert "dtomo.distributed.reach" in script


def test_batch_systems_without_such_a_thing_say_so() -> None:
    with pytest.raises(UserError, match="htcondor knows no queue"):
        job_script(wanted("htcondor"), {"queue": "long"})
    with pytest.raises(UserError, match="extra directives of htcondor are names and values"):
        job_script(wanted("htcondor"), {"extra": "--qos"})
    with pytest.raises(UserError, match="gpus is known for slurm only"):
        job_script(wanted("pbs"), {"gpus": 1})
    with pytest.raises(UserError, match="dask-jobqueue knows no batch system condor; it knows"):
        job_script(wanted("condor"))


def test_extra_directives_of_htcondor() -> None:
    import dask

    with dask.config.set({"jobqueue.htcondor.disk": "1GB"}):
        assert "requirements = HasX" in job_script(wanted("htcondor"), {"extra": ["requirements = HasX"]})
    with pytest.raises(UserError, match="disk"):
        job_script(wanted("htcondor"))


def test_settings_of_the_site_hold_where_nothing_is_given() -> None:
    import dask

    site = {
        "jobqueue.slurm.queue": "site",
        "jobqueue.slurm.walltime": "04:00:00",
        "jobqueue.slurm.interface": "lo",
        "jobqueue.slurm.job-script-prologue": ["module load python"],
        "jobqueue.slurm.job-extra-directives": ["--constraint=ssd"],
        "jobqueue.slurm.worker-extra-args": ["--local-directory", "/scratch"],
    }
    with dask.config.set(site):
        plain = job_script(wanted(), {"extra": "--qos=long"})
        mine = job_script(wanted(), {"queue": "mine", "walltime": "1h"})
        again = job_script(wanted(), {"extra": "--qos=long"})
    assert again == plain
    lines = plain.splitlines()
    assert "#SBATCH -p site" in lines
    assert "#SBATCH -t 04:00:00" in lines
    assert {"#SBATCH --constraint=ssd", "#SBATCH --qos=long"} <= set(lines)
    assert lines.index("module load python") < lines.index("export DTOMO_THREADS=4")
    assert "--local-directory /scratch --lifetime 13950s --lifetime-stagger 150s --interface lo" in plain
    assert "#SBATCH -p mine" in mine
    assert "#SBATCH -t 01:00:00" in mine


def test_workers_in_jobs_have_the_configuration_of_local_ones() -> None:
    exports = dict(
        line.removeprefix("export ").split("=", 1)
        for line in job_script(wanted()).splitlines()
        if line.startswith("export DASK_")
    )
    told = subprocess.run(
        ["bash", "-c", "".join(f"printf '%s\\n' {value}\n" for value in exports.values())],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    expected = {name: value for name, value in CONFIGURATION.items() if name.startswith("distributed.worker.")}
    assert [ast.literal_eval(value) for value in told] == list(expected.values())
    assert len(exports) == len(expected)


def test_memory_is_asked_for_in_one_way_and_is_enough() -> None:
    request = parse_request("slurm", {"memory_line": "mem-per-cpu"})
    line, directives = memory_directives(request, 3_000_000_000, 2, 4)
    assert line is None
    (directive,) = directives
    assert int(directive.removeprefix("--mem-per-cpu=").removesuffix("M")) * 8 * 2**20 >= 6_000_000_000
    assert job_memory(1, 1) * 2**20 >= 1 + NANNY


def test_site_settings_need_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    assert site_settings("slurm")["walltime"]
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(UserError, match=r"pip install 'dtomo\[hpc\]'"):
        site_settings("slurm")


def test_ctrl_c_does_what_it_did_before() -> None:
    """dask-jobqueue takes it when it is imported."""
    program = (
        "import signal; from dtomo.distributed.slurm import _jobqueue; _jobqueue('slurm'); "
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
