#!/usr/bin/env bash
# Golden cases have the bits of threads where their ranks are processes, and delays of messages
# change none of them.
# usage: process_cases.sh PROGRAM "WAY..." RANKS SEEDS CASE[@LAYOUT]...   (from the top of the tree)
#   PROGRAM  tests/apps/process_cases_test, which takes RANKS and all that follows it
#   WAY      mpi: mpirun starts the ranks; ucx: tests/processes.py does; nccl, alone: mpirun does, and
#            each rank has an emulated GPU, as the threads have
set -euo pipefail
program=$1 ways=$2 ranks=$3
shift 3
device=cpu
[ "$ways" != nccl ] || export device=cuda WEFT_EMULATED_DEVICES=$ranks
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$program" "$device" "$ranks" "$@" > "$folder/threads"
layouts=$(cut -d']' -f1 "$folder/threads" | sort -u | wc -l)
for way in $ways; do
  launch="mpirun --allow-run-as-root --oversubscribe -n"
  [ "$way" != ucx ] || launch="python3 tests/processes.py"
  $launch "$ranks" "$program" "$device" "$ranks" "$@" > "$folder/$way"
  diff "$folder/threads" "$folder/$way"
  echo "$ranks processes over $way: $layouts pairs of a case and a layout," \
    "$(wc -l < "$folder/$way") tensors with the bits of threads, $1 seeds of delays"
done
