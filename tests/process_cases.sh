#!/usr/bin/env bash
# Golden cases have the bits of threads where their ranks are processes, and delays of messages
# change none of them.
# usage: process_cases.sh PROGRAM "WAY..." RANKS SEEDS CASE[@LAYOUT]...   (from the top of the tree)
#   PROGRAM  tests/apps/process_cases_test, which takes RANKS and all that follows it
#   WAY      mpi: mpirun starts the ranks; ucx: tests/processes.sh does
set -euo pipefail
program=$1 ways=$2 ranks=$3
shift 3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$program" "$ranks" "$@" > "$folder/threads"
layouts=$(cut -d']' -f1 "$folder/threads" | sort -u | wc -l)
for way in $ways; do
  launch="mpirun --allow-run-as-root --oversubscribe -n"
  [ "$way" = mpi ] || launch="bash tests/processes.sh"
  $launch "$ranks" "$program" "$ranks" "$@" > "$folder/$way"
  diff "$folder/threads" "$folder/$way"
  echo "$ranks processes over $way: $layouts pairs of a case and a layout," \
    "$(wc -l < "$folder/$way") tensors with the bits of threads, $1 seeds of delays"
done
