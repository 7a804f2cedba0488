"""What listens, and to whom: to this machine alone, or to those who hold the key."""

import gc
import shutil
import subprocess
from pathlib import Path

import dask
import psutil
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

from dtomo.distributed.clusters import connect, resources
from dtomo.errors import UserError


def test_a_local_cluster_and_its_dashboard_listen_to_this_machine_alone() -> None:
    wanted = resources(workers=1, memory="500MB")
    assert wanted.dashboard == ":8787"
    with connect(wanted) as client:
        assert client.dashboard_link.startswith("http://127.0.0.1:")
        this = psutil.Process()
        of_cluster = [this.pid, *(child.pid for child in this.children(recursive=True))]
        ports = {
            found.laddr.port: found.laddr.ip
            for pid in of_cluster
            for found in psutil.Process(pid).net_connections("inet")
            if found.status == psutil.CONN_LISTEN
        }
        assert int(client.dashboard_link.split(":")[2].split("/")[0]) in ports
        assert int(client.scheduler.address.split(":")[2]) in ports
        assert set(ports.values()) == {"127.0.0.1"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the keys")
def test_tls_as_the_page_on_clusters_says(tmp_path: Path) -> None:
    (line,) = [
        text.replace("\\\n", " ").split("&&")[0].strip()
        for text in (Path(__file__).parents[2] / "docs" / "clusters.md").read_text("utf-8").split("```bash\n")
        if text.startswith("openssl")
    ]
    others = _open_clients()
    subprocess.run(line.split(), cwd=tmp_path, check=True, capture_output=True)
    own = {what: str(tmp_path / f"{what}.pem") for what in ("key", "cert")}
    place = "distributed.comm.tls"
    tls = {f"{place}.{who}.{what}": file for who in ("scheduler", "worker", "client") for what, file in own.items()}
    tls |= {f"{place}.ca-file": own["cert"], "distributed.comm.require-encryption": True}
    with (
        dask.config.set(tls),
        LocalCluster(1, processes=False, protocol="tls://", security=Security(), dashboard_address=None) as cluster,
    ):
        address = cluster.scheduler_address
        with connect(address) as client:
            assert client.submit(sum, [1, 2]).result() == 3
        with pytest.raises(UserError, match="encryption"), connect(address.replace("tls", "tcp")):
            pass
        nothing = dict.fromkeys([f"{place}.ca-file", f"{place}.client.key", f"{place}.client.cert"])
        with (
            dask.config.set(nothing | {"distributed.comm.require-encryption": False}),
            pytest.raises(UserError, match="no connection"),
            connect(address),
        ):
            pass
        gone = {f"{place}.client.{what}": str(tmp_path / "gone.pem") for what in ("key", "cert")}
        with dask.config.set(gone), pytest.raises(UserError, match=r"no connection.*No such file"), connect(address):
            pass
    assert _open_clients() == others


def _open_clients() -> set[int]:
    """Those that still have something to close."""
    clients = (thing for thing in gc.get_objects() if type(thing) is Client)
    return {id(client) for client in clients if client.status not in ("closed", "newly-created")}
