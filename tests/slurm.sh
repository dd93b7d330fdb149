#!/usr/bin/env bash
# On a Slurm of its own: draws batches with apps/deploy/array.sbatch, on one node, on two, with a task
# that USR1 stops, and with the loss of a node, where every job is drawn once; and draws a clip by a
# job of two nodes, with PMIx over MPI and without over UCX, whose frames are those of one rank.
# Exits with 77 where root or Slurm (apps/setup.sh slurm) is missing.
# usage: slurm.sh WEFT
set -u
weft=$(realpath "$1")
cd "$(dirname "$0")/.."
root=$PWD
skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root"
for tool in slurmctld slurmd sbatch srun scontrol unshare python3; do
  command -v $tool > /dev/null || skip "no $tool"
done

folder=$(mktemp -d)
faults=0
controller=
nodes=()  # the process that is the first of each node's
trap 'kill -9 $controller "${nodes[@]}" 2> /dev/null; wait 2> /dev/null; rm -rf "$folder"' EXIT
fault() { echo "FAULT ($case): $*"; faults=$((faults + 1)); }

# Waits until a command succeeds: what is awaited, the seconds, the command.
await() {
  local what=$1 end=$((SECONDS + $2))
  shift 2
  until "$@" > /dev/null 2>&1; do
    [ $SECONDS -lt $end ] && sleep 0.1 && continue
    fault "no $what"
    tail -n 5 "$folder"/*.log "$folder"/*.out 2> /dev/null | sed 's/^/    /'
    exit 1
  done
}

# Starts a controller and so many nodes. Each node is a PID namespace: it ends with its first
# process, as a machine that loses its power does. In its mount namespace it has a folder for
# temporary files of its own, because Slurm's PMIx makes folders of the same names on all nodes, and
# the nodes' names are this host's.
start_cluster() {
  local node
  SECONDS=0
  mkdir "$folder/state" "$folder/tmp"
  { cat /etc/hosts; echo "127.0.0.1 $(seq -s " " -f "n%g" "$1")"; } > "$folder/hosts"
  {
    echo "ClusterName=weft"
    echo "SlurmctldHost=$(hostname)(127.0.0.1)"
    echo "SlurmUser=root"
    echo "AuthType=auth/none"
    echo "CredType=cred/none"
    echo "MpiDefault=none"
    echo "ProctrackType=proctrack/linuxproc"
    echo "TaskPlugin=task/none"
    echo "SelectType=select/cons_tres"
    echo "SelectTypeParameters=CR_CPU"
    echo "SchedulerParameters=sched_min_interval=0"
    echo "SlurmdParameters=config_overrides"
    echo "SlurmctldPort=$((20000 + $$ % 10000))"
    echo "SlurmctldPidFile=$folder/slurmctld.pid"
    echo "SlurmctldLogFile=$folder/slurmctld.log"
    echo "StateSaveLocation=$folder/state"
    echo "SlurmdPidFile=$folder/slurmd.%n.pid"
    echo "SlurmdLogFile=$folder/slurmd.%n.log"
    echo "SlurmdSpoolDir=$folder/spool.%n"
    echo "TmpFS=$folder/tmp"
    echo "SlurmdTimeout=10"
    echo "KillWait=2"
    echo "ReturnToService=2"
    for node in $(seq "$1"); do
      echo "NodeName=n$node NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$((30000 + $$ % 10000 + node)) CPUs=2"
    done
    echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
  } > "$folder/slurm.conf"
  export SLURM_CONF=$folder/slurm.conf
  slurmctld -D > "$folder/slurmctld.out.log" 2>&1 &
  controller=$!
  nodes=()
  for node in $(seq "$1"); do
    mkdir "$folder/tmp.n$node"
    TMPDIR=$folder/tmp unshare --pid --fork --mount-proc --kill-child bash -c \
      'mount --bind "$TMPDIR.$1" "$TMPDIR" && mount --bind "${TMPDIR%/*}/hosts" /etc/hosts && exec slurmd -D -N "$1"' node "n$node" > "$folder/n$node.out.log" 2>&1 &
    nodes+=($!)
  done
  await "$1 idle nodes" 30 nodes_are_idle "$1"
}
nodes_are_idle() { [ "$(sinfo --noheader --Node --states=idle | wc -l)" = "$1" ]; }

stop_cluster() {
  { kill -9 $controller "${nodes[@]}"; wait; } 2> /dev/null
  rm -rf "${folder:?}"/*
}

# Queues the batch as an array of 4 tasks; sets `job`.
queue() {
  local i
  mkdir -p "$folder/bin"
  ln -sf "$weft" "$folder/bin/weft"
  for i in $(seq 0 $((jobs - 1))); do
    echo "{\"id\":\"job-$i\",\"prompt\":\"ball $i\",\"seed\":$i}"
  done > "$folder/jobs.jsonl"
  job=$(cd "$folder" && PATH=$folder/bin:$PATH sbatch --parsable --cpus-per-task=1 --array=0-3 \
    "$root/apps/deploy/array.sbatch" "$folder/jobs.jsonl" --model "$root/tests/golden/pipeline_t2v/model" \
    --threads 1 --size 32x16 --num-frames 5 --steps 200 --checkpoint-every 0 --progress none \
    -o "$folder/clips/")
}
jobs=16

queue_is_empty() { [ -z "$(squeue --noheader)" ]; }
is_running() { [ "$(squeue --noheader --format=%T --jobs="${job}_$1")" = RUNNING ]; }
restarts() { scontrol show job "${job}_$1" | sed -n 's/.*Restarts=\([0-9]*\).*/\1/p'; }
# True where the shard has made a clip and a checkpoint of the next one.
is_amid_work() {
  local clip
  [ -s "$folder/clips/results-$1-of-4.jsonl" ] || return 1
  for clip in "$folder"/clips/job-*.checkpoint.safetensors; do
    clip=${clip##*/job-}
    [ "${clip%%.*}" != "*" ] && [ $((${clip%%.*} % 4)) = "$1" ] && return 0
  done
  return 1
}

# Every job must have its clip, and nothing else may be there; $1 is the least number of clips that
# went on from a checkpoint.
check() {
  await "end of the batch" 300 queue_is_empty
  python3 - "$folder/clips" $jobs "$1" << 'EOF' || fault "see above"
import glob, json, os, sys
folder, jobs, resumed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lines = lambda kind: [json.loads(line) for path in glob.glob(f"{folder}/{kind}-*-of-4.jsonl") for line in open(path)]
ids = sorted(line["custom_id"] for line in lines("results"))
assert ids == sorted(f"job-{i}" for i in range(jobs)), ids
assert not lines("errors"), lines("errors")
manifest = json.load(open(f"{folder}/manifest.json"))
assert manifest["state"] == "completed" and len(manifest["shards"]) == 4, manifest
files = {"manifest.json", *(f"{kind}-{i}-of-4.jsonl" for kind in ("results", "errors") for i in range(4)),
         *(f"job-{i}.{end}" for i in range(jobs) for end in ("mp4", "mp4.json"))}
assert set(os.listdir(folder)) == files, set(os.listdir(folder)) ^ files
went_on = [i for i in range(jobs) if json.load(open(f"{folder}/job-{i}.mp4.json"))["resumed_after_step"] > 0]
assert len(went_on) >= resumed, went_on
print(f"{jobs} jobs drawn once, {len(went_on)} of them went on from a checkpoint")
EOF
  echo "$case: $SECONDS s"
}

case="one node, a task is stopped by USR1"
start_cluster 1
queue
await "work of task 0" 120 is_amid_work 0
scancel --signal=USR1 "${job}_0" 2> /dev/null  # it tries again where the task ends meanwhile
await "task 0 in the queue again" 60 eval '[ "$(restarts 0)" = 1 ]'
check 1
stop_cluster

case="two nodes, one is lost"
start_cluster 2
queue
await "a running task on n2" 60 eval '[ -n "$(squeue --noheader --nodelist=n2 --format=%K)" ]'
task=$(squeue --noheader --nodelist=n2 --format=%K | head -n 1)
await "work of task $task" 120 is_amid_work "$task"
{ kill -9 "${nodes[1]}"; wait "${nodes[1]}"; } 2> /dev/null
await "task $task in the queue again" 120 eval '[ "$(restarts $task)" = 1 ]'
check 1
stop_cluster

# Draws a clip by apps/deploy/ranks.sbatch on two nodes; its frames must be those of one rank.
# usage: draw_by_a_step KIND_OF_MPI FLAGS
draw_by_a_step() {
  local clip=(--model "$root/models/pocket" --prompt "a big red ball" --size 64x64 --num-frames 9 --steps 4 --seed 1
    --dtype f32 --threads 1 --progress none)
  mkdir -p "$folder/bin"
  ln -sf "$weft" "$folder/bin/weft"
  "$weft" generate "${clip[@]}" -o "$folder/one.mp4" > "$folder/one" 2> "$folder/one.log"
  # shellcheck disable=SC2086
  WEFT_SRUN_MPI=$1 PATH=$folder/bin:$PATH timeout 120 sbatch --wait --cpus-per-task=1 --output="$folder/step" \
    apps/deploy/ranks.sbatch "${clip[@]}" $2 -o "$folder/step.mp4" > "$folder/sbatch.log" 2>&1 ||
    fault "sbatch ended with $?: $(tail -n 3 "$folder/sbatch.log" "$folder/step")"
  [ -n "$(frames_of one)" ] && [ "$(frames_of step)" = "$(frames_of one)" ] ||
    fault "frames '$(frames_of step)', of one rank '$(frames_of one)'"
  echo "$case: $SECONDS s"
}
frames_of() { sed -n 's/.*[.]mp4 \([0-9a-f]\{64\}\) .*/\1/p' "$folder/$1"; }
for kind in pmix none; do
  case="a step of two nodes, --mpi=$kind"
  start_cluster 2
  draw_by_a_step $kind "--layout layers=2 --text-ranks 1 --vae-ranks 1"
  stop_cluster
done
exit $((faults > 0))
