#!/usr/bin/env bash
# Ranks that are processes of mpirun draw displaced patches: their frames are those of threads.
# usage: displaced_mpi.sh WEFT   (from the top of the tree)
set -euo pipefail
weft=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Prints the frame hash of a job. The arguments are flags of generate; LAUNCH comes before it.
hash_of() {
  ${LAUNCH:-} "$weft" generate --model models/pocket --prompt "a red ball" \
    --num-frames 5 --steps 9 --seed 5 --threads 1 --progress none --overwrite --json \
    -o "$folder/clip.mp4" "$@" 2>"$folder/stderr" | grep -o '"framehash":"[0-9a-f]*"' ||
    { cat "$folder/stderr" >&2; return 1; }
}

for ranks in 2 3; do
  for job in distrifusion:patches=3,warmup=1@patch pcpp:patches=3,window=0.5,warmup=1@patch \
    pipefusion:patches=3,warmup=1@layers; do
    flags=(--method "${job%@*}" --layout "${job#*@}=$ranks")
    threads=$(hash_of "${flags[@]}" --ranks "$ranks")
    processes=$(LAUNCH="mpirun --allow-run-as-root --oversubscribe -n $ranks" hash_of "${flags[@]}")
    if [ "$threads" != "$processes" ]; then
      echo "${job%@*} on $ranks ranks: threads $threads, processes $processes" >&2
      exit 1
    fi
    echo "${job%@*} on $ranks ranks: $threads"
  done
done
