#!/usr/bin/env bash
# Ctrl-C and SIGUSR1 to mpirun while it generates: what is there to go on from, and what is not left.
# usage: interrupt.sh WEFT [--nccl]
#   --nccl  SIGTERM (a shell's job has no SIGINT) and SIGUSR1 to tests/processes.py, and WEFT gives each process an emulated GPU; these exchange by NCCL
set -u
weft=$(realpath "$1")
command -v mpirun > /dev/null || { echo "skipped: no mpirun"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
faults=0
mpi=(mpirun --allow-run-as-root --oversubscribe -n 2)
layout=ulysses=2 keeps_frames= device=() again="Resume: mpirun -n 2 " first=INT code_of_first=1  # mpirun's own
# So many that they outlast the second that mpirun takes from SIGINT to its own SIGTERM.
steps=(--steps 300 --num-frames 9)
if [ "${2:-}" = --nccl ]; then
  export WEFT_EMULATED_DEVICES=2
  mpi=(python3 "$(dirname "$0")/processes.py" 2) again="Resume as 2 processes by torchrun, over NCCL: " first=TERM code_of_first=143
  device=(--device cuda --transport nccl) steps=(--dtype f32 --steps 12 --num-frames 5 --size 64x64)
fi

fault() {
  echo "FAULT ($case): $*"
  tail -n 5 "$folder/err" | sed 's/^/    /'
  faults=$((faults + 1))
}

# case, then flags of generate; the progress goes through a pipe, as to a program that draws it.
start() {
  case=$1
  shift
  rm -rf "$folder"/.??* "$folder"/*
  mkfifo "$folder/pipe"
  touch "$folder/err"
  cat "$folder/pipe" > "$folder/err" &
  reader=$!
  "${mpi[@]}" "$weft" generate --model models/pocket --prompt "a red ball moves right on a gray floor" \
    --layout "$layout" --threads 1 --seed 1 --progress json --output "$folder/clip.mp4" "${device[@]}" "$@" \
    > "$folder/out" 2> "$folder/pipe" &
  job=$!
}

# signal, wanted code, event: sent to mpirun after that event of the progress.
interrupt() {
  until grep -q -- "$3" "$folder/err"; do
    kill -0 "$job" 2> /dev/null || { fault "the job ended before $3"; break; }
    sleep 0.02
  done
  kill "-$1" "$job" 2> /dev/null
  wait "$job"
  code=$?
  wait "$reader"
  [ "$code" = "$2" ] || fault "code $code instead of $2"
  [ -n "$keeps_frames" ] || { ls -A "$folder" | grep '\.part' && fault "half a file is left"; }
  [ -e "$folder/clip.mp4" ] && fault "a clip is there"
}

kept() {
  [ -s "$folder/clip.mp4.checkpoint.safetensors" ] || fault "no checkpoint"
  grep -q "$again" "$folder/err" || fault "no line tells how to go on"
}

resumed() {
  "${mpi[@]}" "$weft" generate --resume "$folder/clip.mp4.checkpoint.safetensors" --progress none "${device[@]}" \
    > "$folder/out" 2> "$folder/err" || fault "no resuming"
  [ "$(cut -d ' ' -f 2 "$folder/out")" = "$whole" ] || fault "other frames: $(cat "$folder/out")"
  ls -A "$folder" | grep 'part\|checkpoint' && fault "leftovers"
  echo "$case: code $code, resumed to the same frames"
}

start whole "${steps[@]}"
wait "$job" "$reader"
whole=$(cut -d ' ' -f 2 "$folder/out")
[ -n "$whole" ] || fault "no frame hash"

start "$first" "${steps[@]}"
interrupt "$first" "$code_of_first" '"denoise","step":2,'
kept
resumed

start USR1 "${steps[@]}"
interrupt USR1 75 '"denoise","step":2,'
kept
echo "$case: code $code, kept"
[ ${#device[@]} = 0 ] || exit $((faults > 0))

# The block queue keeps the frames that are written, too. It is stopped twice: in the second half,
# and by a kill.
layout=layers=2 keeps_frames=1
queue=(--method queue:block=2,context=1 --num-frames 241 --steps 12 --size 64x64)
start whole "${queue[@]}"
wait "$job" "$reader"
whole=$(cut -d ' ' -f 2 "$folder/out")
[ -n "$whole" ] || fault "no frame hash"
start "USR1 to the queue" "${queue[@]}" --checkpoint-every 0
interrupt USR1 75 '"turn":15}'
kept
[ -s "$folder/.clip.part.mp4" ] || fault "no frames are kept"
"${mpi[@]}" "$weft" generate --resume "$folder/clip.mp4.checkpoint.safetensors" --progress json \
  > "$folder/out" 2> "$folder/err" &
job=$!
until grep -q '"turn":19}' "$folder/err"; do
  kill -0 "$job" 2> /dev/null || { fault "the job ended before turn 19"; break; }
  sleep 0.02
done
# The ranks, too: they may end the job before they know that mpirun is gone.
kill -KILL $(pgrep -P "$job") "$job"
wait "$job" 2> /dev/null
resumed
layout=ulysses=2 keeps_frames=

# A step that takes longer than mpirun waits.
mpi+=(--mca odls_base_sigkill_timeout 2)
start "Ctrl-C in a long step" --steps 2 --num-frames 161 --size 384x384 --method full
interrupt INT 1 '"denoise","step":0,'
grep -q "stopped at once: mpirun kills its processes 2 s after" "$folder/err" || fault "no word of it"
[ "$faults" = 0 ] && echo "$case: nothing half written is left"
exit $((faults > 0))
