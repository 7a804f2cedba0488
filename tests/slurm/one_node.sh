#!/usr/bin/env bash
# A real Slurm on this machine alone, for tests: two small nodes, no systemd, no cgroups, no accounting.
#   one_node.sh start FOLDER    its configuration, state and logs go into FOLDER; prints the SLURM_CONF to use
#   one_node.sh stop FOLDER
# Needs Slurm and munge (Debian: apt-get install -y --no-install-recommends slurm-wlm munge); touches nothing outside.
set -euo pipefail
action=${1:?usage: one_node.sh start|stop FOLDER}
folder=$(realpath -m "${2:?usage: one_node.sh start|stop FOLDER}")
export PATH=$PATH:/usr/sbin:/usr/local/sbin
export SLURM_CONF=$folder/slurm.conf

stop() {
    local name pid
    for name in slurmd-dtomo1 slurmd-dtomo2 slurmctld munged; do
        [ -s "$folder/$name.pid" ] || continue
        pid=$(cat "$folder/$name.pid")
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        kill -9 "$pid" 2>/dev/null || true
    done
}

if [ "$action" = stop ]; then
    scancel --quiet --user "$(id -un)" 2>/dev/null || true
    stop
    exit 0
fi

read -r controller first second < <(python3 - <<'P'
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(one.getsockname()[1] for one in sockets))
P
)
mkdir -p "$folder/state" "$folder/spool"
cat > "$folder/slurm.conf" <<C
ClusterName=dtomo
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$controller
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=0
KillWait=5
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
NodeName=dtomo1 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$first CPUs=4 RealMemory=8000 State=UNKNOWN
NodeName=dtomo2 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$second CPUs=4 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=closed Nodes=ALL Default=NO MaxTime=INFINITE State=DOWN
C
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' > "$folder/cgroup.conf"
(umask 077; head -c 1024 /dev/urandom > "$folder/munge.key")
trap stop ERR
munged --force --key-file "$folder/munge.key" --socket "$folder/munge.socket" --pid-file "$folder/munged.pid" \
    --log-file "$folder/munged.log" --seed-file "$folder/munged.seed" 2>> "$folder/start.log"
slurmctld -c 2>> "$folder/start.log"
for node in dtomo1 dtomo2; do
    mkdir -p "$folder/spool/$node"
    slurmd -c -N "$node" 2>> "$folder/start.log"
done
for _ in $(seq 100); do
    [ "$(sinfo -h -N -p main -t idle -o %n 2>/dev/null | wc -l)" = 2 ] && { echo "$SLURM_CONF"; exit 0; }
    sleep 0.2
done
echo "Slurm did not start; its logs:" >&2
tail -n 5 "$folder"/*.log >&2
stop
exit 1
