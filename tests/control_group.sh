#!/usr/bin/env bash
# Jobs in control groups of 1.5 CPUs and 2 GiB, of half a CPU, and of groups inside one another start as
# many threads and plan with as much memory as these allow. Exits with 77 where no group can be made.
# usage: control_group.sh WEFT   (from the top of the tree)
set -u
weft=$1
skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root"

top=/sys/fs/cgroup
name=weft_test_$$
if [ -e $top/cgroup.controllers ]; then
  version=2
  parents=("$top")
  echo "+cpu +memory" 2> /dev/null > $top/cgroup.subtree_control || skip "no controllers for groups"
else
  version=1
  parents=("$top/cpu" "$top/memory")
fi
folder=$(mktemp -d)
groups=()  # the innermost first
remove() {
  # A job's helper processes may take a moment to leave.
  for group in "${groups[@]}"; do
    for _ in $(seq 20); do rmdir "$group" 2> /dev/null && break; sleep 0.1; done
  done
  rm -rf "$folder"
}
trap remove EXIT

make_group() {  # its name
  local parent
  for parent in "${parents[@]}"; do
    mkdir "$parent/$1" 2> /dev/null || skip "$parent takes no groups"
    groups=("$parent/$1" "${groups[@]}")
  done
}
set_cpus() {  # name, CPU time in milliseconds of 100
  if [ $version = 2 ]; then
    echo "${2}000 100000" > "$top/$1/cpu.max" || skip "no CPU quota"
  else
    echo 100000 > "$top/cpu/$1/cpu.cfs_period_us" && echo "${2}000" > "$top/cpu/$1/cpu.cfs_quota_us" ||
      skip "no CPU quota"
  fi
}
set_memory() {  # name, bytes
  if [ $version = 2 ]; then echo "$2" > "$top/$1/memory.max"; else echo "$2" > "$top/memory/$1/memory.limit_in_bytes"; fi ||
    skip "no memory limit"
}
within() {  # name, command
  local group=$1
  shift
  (
    for parent in "${parents[@]}"; do echo $BASHPID > "$parent/$group/cgroup.procs" || exit 99; done
    exec "$@"
  )
}

faults=0
fault() { echo "FAULT: $*"; faults=$((faults + 1)); }
job=(generate --model models/pocket --prompt "a red ball" --num-frames 1 --steps 2)
number_of() { grep -o "\"$1\":[0-9]*" | grep -o '[0-9]*$'; }
expect_threads() {  # what, wanted, command
  local what=$1 wanted=$2 found
  shift 2
  found=$("$@" "${job[@]}" --dry-run --json | number_of threads)
  [ "$found" = "$wanted" ] || fault "$what: $found threads, not $wanted"
  echo "$what: $found threads"
}

cpus=$(nproc)
make_group "$name"
set_cpus "$name" 150
set_memory "$name" $((2 << 30))
expect_threads "1.5 CPUs" 1 within "$name" "$weft"
within "$name" "$weft" doctor | grep -q "1 thread a rank: control group's quota of 1.5 CPUs" ||
  fault "doctor does not name the quota"
available=$(within "$name" "$weft" "${job[@]}" --dry-run --json | number_of available_bytes)
[ "$available" -le $((2 << 30)) ] && [ "$available" -gt $((3 << 29)) ] || fault "2 GiB: $available bytes"
echo "2 GiB: $available bytes are available"
within "$name" "$weft" generate --model models/pocket --prompt x --num-frames 257 --size 2048x2048 --steps 2 --method full --dry-run > "$folder/out" 2>&1 &&
  fault "a job of more than 2 GiB fits"
grep -q "GiB" "$folder/out" || fault "no word of memory: $(cat "$folder/out")"

set_cpus "$name" 50
expect_threads "half a CPU" 1 within "$name" "$weft"
OMP_DISPLAY_AFFINITY=TRUE OMP_AFFINITY_FORMAT="thread %n of %N" within "$name" "$weft" "${job[@]}" \
  --seed 5 --progress none -o "$folder/half.png" 2> "$folder/err" || fault "$(cat "$folder/err")"
grep -q "thread 1 of" "$folder/err" && fault "a job with half a CPU starts a second thread"

# Two groups in one of twice as many CPUs as there are: the ranks of each share its quota.
set_cpus "$name" $((cpus * 200))
expect_threads "more than there are" "$cpus" within "$name" "$weft"
if [ $version = 2 ]; then echo "+cpu +memory" > "$top/$name/cgroup.subtree_control" || skip "no groups in groups"; fi
make_group "$name/inner"
set_cpus "$name/inner" 100
expect_threads "a group inside" 1 within "$name/inner" "$weft"
if command -v mpirun > /dev/null; then
  set_cpus "$name/inner" 400
  share=$((4 / 2 < cpus / 2 ? 4 / 2 : (cpus / 2 > 0 ? cpus / 2 : 1)))
  expect_threads "4 CPUs for two processes" $share within "$name/inner" \
    mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 "$weft"
  set_cpus "$name/inner" 150
  set_cpus "$name" 150
  within "$name/inner" mpirun --allow-run-as-root --oversubscribe -n 2 "$weft" doctor > "$folder/out" ||
    fault "doctor under mpirun: $(cat "$folder/out")"
  grep -q "1 thread a rank: control group's quota of 1.5 CPUs, which 2 ranks share" "$folder/out" ||
    fault "doctor does not name the shared quota: $(grep cores "$folder/out")"
fi
echo "$faults faults"
[ $faults = 0 ]
