#!/usr/bin/env bash
# Ranks that are processes draw the frames of threads: over MPI and over UCX, for every way of
# splitting a clip and for displaced patches. A way of starting processes that is missing is left out.
# usage: process_frames.sh WEFT [mpi] [ucx]   (from the top of the tree)
set -euo pipefail
weft=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Prints the frame hash of a job. The arguments are flags of generate; LAUNCH comes before it.
hash_of() {
  ${LAUNCH:-} "$weft" generate --model models/pocket --prompt "a red ball" --dtype f32 \
    --num-frames 5 --steps 9 --seed 5 --threads 1 --progress none --overwrite --json \
    -o "$folder/clip.mp4" "$@" 2>"$folder/stderr" | grep -o '"framehash":"[0-9a-f]*"' ||
    { cat "$folder/stderr" >&2; return 1; }
}

for ranks in 2 3; do
  jobs=(full@ulysses full@ring full@layers full@tensor distrifusion:patches=3,warmup=1@patch
    pcpp:patches=3,window=0.5,warmup=1@patch pipefusion:patches=3,warmup=1@layers)
  [ $ranks != 2 ] || jobs+=(full@cfg)
  for job in "${jobs[@]}"; do
    flags=(--method "${job%@*}" --layout "${job#*@}=$ranks")
    threads=$(hash_of "${flags[@]}" --ranks "$ranks")
    for way in "$@"; do
      launch="bash tests/processes.sh $ranks"
      [ "$way" = ucx ] || launch="mpirun --allow-run-as-root --oversubscribe -n $ranks"
      processes=$(LAUNCH=$launch hash_of "${flags[@]}")
      if [ "$threads" != "$processes" ]; then
        echo "$job on $ranks ranks over $way: threads $threads, processes $processes" >&2
        exit 1
      fi
    done
    echo "$job on $ranks ranks: $threads"
  done
done
