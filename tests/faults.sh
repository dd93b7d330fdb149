#!/usr/bin/env bash
# Kills or stops one rank of a job of several processes and checks how the others end: all within the
# time limit, with one line that names the rank, and without a partly written file.
# usage: faults.sh WEFT [--ucx|--nccl] [PHASE...]
#   --ucx   the processes are started by tests/processes.py and not by mpirun: their messages go over
#           UCX, and nobody but the ranks themselves ends the job
#   --nccl  the same, and WEFT gives each an emulated GPU; these exchange by NCCL. A rank that is killed
#           or stopped in the phase denoise must be named within 5 s, too; denoise-fail is an error of NCCL
#   PHASE   start-kill start-stop denoise-kill denoise-stop denoise-slow denoise-patient decode-kill
#           decode-stop write-kill write-stop queue-kill queue-stop clips-kill clips-stop stream-kill
#           stream-stop listen-kill listen-stop; all of them where none is given (start-stop takes 60 s).
#           queue and clips are denoising by these methods, on two stages and on two clips, stream is a
#           face that speaks and listen a live one that waits for clients, on two groups of steps; a rank
#           that is stopped there must be named within 5 s.
set -u
weft=$(realpath "$1")
shift
launch=(mpirun --allow-run-as-root --oversubscribe -n)
nccl=()
if [ "${1:-}" = --nccl ]; then
  export WEFT_EMULATED_DEVICES=8
  nccl=(--device cuda --transport nccl)
fi
case ${1:-} in --ucx | --nccl) launch=(python3 "$(dirname "$0")/processes.py"); shift ;; esac
[ $# -gt 0 ] || set -- start-kill start-stop denoise-kill denoise-stop denoise-slow denoise-patient \
  decode-kill decode-stop write-kill write-stop queue-kill queue-stop clips-kill clips-stop \
  stream-kill stream-stop listen-kill listen-stop
command -v "${launch[0]}" > /dev/null || { echo "skipped: no ${launch[0]}"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
victim=1
faults=0

fault() {
  echo "FAULT ($phase): $*"
  sed 's/^/    /' "$folder/err"
  faults=$((faults + 1))
}

# Four minutes of silence.
write_silence() {
  local bytes=$((240 * 32000))
  little() { for ((i = 0; i < $2; ++i)); do printf "\\x$(printf %02x $(($1 >> 8 * i & 255)))"; done; }
  {
    printf RIFF && little $((bytes + 36)) 4 && printf 'WAVEfmt ' && little 16 4 && little 1 2 && little 1 2
    little 16000 4 && little 32000 4 && little 2 2 && little 16 2 && printf data && little "$bytes" 4
    head -c "$bytes" /dev/zero
  } > "$1"
}

seconds() { date +%s.%N; }
elapsed() { echo "$2 $1" | awk '{ printf "%.1f", $1 - $2 }'; }
over() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > b) }'; }

# Waits until the job has reached the phase; false where it ends before.
reach() {
  while kill -0 "$job" 2> /dev/null; do
    [ -s "$folder/pid.$victim" ] && { [ "$1" = start ] || grep -q "$1" "$folder/err"; } && return 0
    sleep 0.02
  done
  return 1
}

for phase in "$@"; do
  stage=${phase%-*} act=${phase#*-}
  rm -f "$folder"/*
  marker="  $stage"
  [ "$stage" = start ] && marker=start
  [ "$stage" = write ] && marker='  encode_video'  # the last stage that takes noticeable time
  # A start that hangs: the victim waits before it becomes a rank.
  pause=0 patience=30
  [ "$stage" = start ] && pause=1000 patience=80
  steps=1000 frames=25
  [ "$stage" = denoise ] || { steps=2; frames=161; }
  layout=ulysses=3 ranks=3 method=full
  size=() soon=
  if [ ${#nccl[@]} -gt 0 ]; then
    patience=120 size=(--size 64x64)
    [ "$stage" = denoise ] && soon=yes frames=9 marker='  denoise [1-9]'
  fi
  case $stage in
    queue) layout=layers=2 ranks=2 method=queue marker='  denoise [1-9]' steps=200 ;;
    clips) layout=clip=2 ranks=2 method=clips:window=2,global=2 marker='  denoise [1-9]' steps=1000 ;;
    stream) layout=step=2 ranks=2 method=stream marker='^seed ' ;;
    listen) layout=step=2 ranks=2 method=listen marker='Clients can connect' ;;
  esac
  [ "$method" = full ] || soon=yes
  work=(generate --model models/pocket --prompt "a red ball moves right on a gray floor" --steps "$steps"
    --num-frames "$frames" "${size[@]}" --method "$method" --progress plain --output "$folder/clip.mp4")
  [ "$stage" = listen ] && work=(stream --model models/pocket_avatar --listen 127.0.0.1:0)
  if [ "$stage" = stream ]; then
    write_silence "$folder/silence.wav"
    work=(stream --model models/pocket_avatar --render "$folder/silence.wav" --output "$folder/clip.mp4")
  fi
  # A stop of 3 s is shorter than the usual limit; one of 8 s needs --heartbeat-timeout.
  stopped=3 timeout=()
  [ "$act" = patient ] && stopped=8 timeout=(--heartbeat-timeout 14) act=slow
  [ "$act" = slow ] && steps=200 patience=120
  unset WEFT_EMULATED_NCCL_FAIL
  [ "$act" != fail ] || export soon= WEFT_EMULATED_NCCL_FAIL=$victim:500
  timeout -k 5 "$patience" "${launch[@]}" "$ranks" sh -c '
    rank=${OMPI_COMM_WORLD_RANK:-$RANK}
    echo $$ > "$0/pid.$rank"
    [ "$rank" = "$1" ] && sleep "$2"
    shift 2
    exec "$@"' "$folder" "$victim" "$pause" "$weft" "${work[@]}" "${nccl[@]}" --layout "$layout" --threads 1 --seed 1 "${timeout[@]}" \
    > "$folder/out" 2> "$folder/err" &
  job=$!
  [ "$act" = fail ] || reach "$marker" || { fault "the job ended before $marker"; continue; }
  case $stage in start | stream) sleep 1 ;; esac
  [ "$act" = fail ] || pid=$(cat "$folder/pid.$victim")
  begun=$(seconds)
  # 4.5 s of silence, a second or two between mpirun's SIGTERM and SIGKILL, and as much again for a
  # machine whose cores are shared.
  limit=14
  case $act in
    kill) kill -KILL "$pid" ;;
    stop)
      kill -STOP "$pid"
      [ "$stage" = start ] && limit=64
      ;;
    fail) limit=100 ;;
    slow)
      kill -STOP "$pid"
      sleep $stopped
      kill -CONT "$pid"
      limit=600
      ;;
  esac
  named=-
  if [ -n "$soon" ]; then
    until grep '^weft: .*rank 1' "$folder/err" | grep -vq warning || over "$(elapsed "$begun" "$(seconds)")" "$limit"; do
      sleep 0.05
    done
    named=$(elapsed "$begun" "$(seconds)")
    # As much again is for a machine whose cores are shared; the line says how long rank 1 was silent.
    over "$named" 10 && fault "rank 1 was named after $named s"
    silent=$(grep -v warning "$folder/err" | sed -n 's/^weft: rank 1 has given no sign for \([0-9.]*\) s.*/\1/p' | head -1)
    over "${silent:-0}" 5 && fault "rank 1 was silent for $silent s"
    [ "$act" = stop ] && [ -z "$silent" ] && fault "no line says how long rank 1 was silent"
  fi
  # The waiting shell's sleep survives it and would keep mpirun's pipes open.
  [ "$phase" = start-kill ] && pkill -KILL -f "^sleep $pause\$"
  wait "$job"
  code=$?
  while pids=$(cat "$folder"/pid.* | xargs ps -o pid= -p) && ! over "$(elapsed "$begun" "$(seconds)")" "$limit"; do
    sleep 0.05
  done
  took=$(elapsed "$begun" "$(seconds)")
  [ -z "$pids" ] || fault "processes are still there after $took s:" $pids
  [ "$phase" = start-stop ] && pkill -KILL -f "^sleep $pause\$"
  over "$took" "$((limit + 1))" && fault "the ranks ended after $took s"
  ls "$folder" | grep -q '\.part' && fault "half a file: $(ls "$folder")"
  line=$(grep -h '^weft: ' "$folder/err" | grep -v '%\|warning' | sort -u)
  if [ "$act" = slow ]; then
    [ "$code" = 0 ] && [ -s "$folder/clip.mp4" ] || fault "the job did not complete: code $code"
    [ "$(grep -c 'warning: rank 1 has given no sign' "$folder/err")" = 1 ] || fault "not one warning"
  else
    [ "$code" != 0 ] || fault "code 0"
    # A rank that dies after the last frame may leave a job that is complete.
    if [ -e "$folder/clip.mp4" ]; then
      [ "$stage" = write ] && "$weft" inspect "$folder/clip.mp4" > /dev/null || fault "a clip is there"
      echo "$phase: $took s, code $code: the clip was complete"
      continue
    fi
    # A process that is killed before it is a rank is reported by what started it.
    [ "$phase" = start-kill ] || grep -q 'rank 1' <<< "$line" || fault "no line names rank 1"
    [ "$act" != kill ] && [ "$code" != 6 ] && fault "code $code instead of 6"
    [ "$act" != fail ] || grep -q 'rank 1: NCCL, moving messages' <<< "$line" || fault "no error of NCCL"
    grep 'processes.py: rank .* ended with status' "$folder/err" | grep -v "rank $victim \|status 6\$" &&
      fault "a rank's code is not 6"
    [ "$phase" = start-kill ] || ! grep 'had to be killed' "$folder/err" | grep -v "rank $victim " ||
      fault "a rank did not end"
  fi
  echo "$phase: $took s, named after $named s, code $code: ${line:-completed}"
done
exit $((faults > 0))
