#!/usr/bin/env bash
# Starts a job of several processes on this machine as torchrun does: with its variables and nothing
# else, so that they find each other by themselves and their messages go over UCX. It ends with the
# first status that is not 0, and names each; processes that have not ended five seconds after the
# first are killed and named. A signal goes to all of them.
# usage: processes.sh RANKS COMMAND...
set -u
export WORLD_SIZE=$1 LOCAL_WORLD_SIZE=$1 MASTER_ADDR=127.0.0.1 MASTER_PORT
shift
taken() { (: < "/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2> /dev/null; }
until MASTER_PORT=$((20000 + RANDOM % 10000)) && ! taken; do :; done

declare -A running
for ((rank = 0; rank < WORLD_SIZE; ++rank)); do
  RANK=$rank LOCAL_RANK=$rank "$@" &
  running[$!]=$rank
done
for signal in INT TERM USR1; do trap "kill -$signal \${!running[*]} 2> /dev/null" $signal; done
status=0
killer=
while [ ${#running[@]} -gt 0 ]; do
  ended=
  wait -n -p ended "${!running[@]}"
  code=$?
  [ -n "${ended:-}" ] || continue  # a signal came
  [ $code = 0 ] || echo "processes.sh: rank ${running[$ended]} ended with status $code" >&2
  unset "running[$ended]"
  [ $code = 0 ] || [ $status != 0 ] && continue
  status=$code
  {
    sleep 5
    for pid in "${!running[@]}"; do
      kill -KILL "$pid" 2> /dev/null && echo "processes.sh: rank ${running[$pid]} had to be killed" >&2
    done
  } &
  killer=$!
done
[ -z "$killer" ] || kill $killer 2> /dev/null
exit $status
