#!/usr/bin/env bash
# Ranks that are processes draw what one process draws, to the bit.
# usage: process_frames.sh WEFT WRITE_SPEECH_MODEL WAY PART...   (from the top of the tree)
#   WAY    mpi: mpirun starts them; ucx: tests/processes.py does; nccl: mpirun does, and WEFT gives each
#          an emulated GPU, as it does to threads; their jobs are smaller
#   PART   clip: every way of splitting one; stale: displaced patches, and clips; queue: of two blocks;
#          batch: of three prompts; pictures: videos of a picture; speech: of a sound; streams: of the
#          pocket avatar; speech-streams: of a picture and a sound
set -euo pipefail
weft=$(realpath "$1") write_speech_model=$2 way=$3
shift 3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
launch="mpirun --allow-run-as-root --oversubscribe -n"
[ "$way" != ucx ] || launch="python3 tests/processes.py"
device=() transport=() size=() steps=9
if [ "$way" = nccl ]; then
  export WEFT_EMULATED_DEVICES=8
  device=(--device cuda) transport=(--transport nccl) size=(--size 64x64) steps=3
fi

# Runs "$@" in another folder on the first rank, and with more flags, $flags_of_others, on the others.
each="$folder/each"
cat > "$each" << 'END'
#!/usr/bin/env bash
if [ "${OMPI_COMM_WORLD_RANK:-${RANK:-0}}" = 0 ]; then
  cd "$(dirname "$0")"
else
  set -- "$@" ${flags_of_others:-}
fi
exec "$@"
END
chmod +x "$each"

# Prints the frame hash of a command of weft. LAUNCH comes before it.
hash_of() {
  timeout 100 ${LAUNCH:-} $weft "$@" "${device[@]}" --seed 5 --threads 1 --overwrite --json -o "$folder/${output:-clip.mp4}" \
    2> "$folder/stderr" | grep -o '"framehash":"[0-9a-f]*"' || { cat "$folder/stderr" >&2; return 1; }
}

# name, wanted hash, ranks, command
expect() {
  local name=$1 wanted=$2 ranks=$3 got
  shift 3
  got=$(LAUNCH="$launch $ranks" hash_of "$@" "${transport[@]}")
  if [ "$got" != "$wanted" ]; then
    echo "$name on $ranks processes over $way: $got instead of $wanted" >&2
    exit 1
  fi
  echo "$name on $ranks processes over $way: $got"
}

# ranks, layout, generate's other flags: processes draw what threads draw.
compare() {
  local ranks=$1 flags=(generate --progress none --layout "$2" "${@:3}") threads
  threads=$(hash_of "${flags[@]}" --ranks "$ranks")
  expect "$2 ${*:3}" "$threads" "$ranks" "${flags[@]}"
}

clip() {
  local ranks axis
  for ranks in 2 3; do
    for axis in ulysses ring layers tensor cfg; do
      [ "$axis$ranks" = cfg3 ] || compare "$ranks" "$axis=$ranks" --model models/pocket --prompt "a red ball" \
        --dtype f32 --num-frames 5 --steps "$steps" "${size[@]}"
    done
  done
}

stale() {
  local ranks job
  for ranks in 2 3; do
    for job in distrifusion:patches=3,warmup=1@patch pcpp:patches=3,window=0.5,warmup=1@patch \
      pipefusion:patches=3,warmup=1@layers clips:window=2,global=2,stale=1,warmup=1@clip; do
      compare "$ranks" "${job#*@}=$ranks" --method "${job%@*}" --model models/pocket --prompt "a red ball" \
        --dtype f32 --num-frames 17 --steps 9 "${size[@]}"
    done
  done
}

queue() {
  local layout
  for layout in layers=2 ulysses=2 cfg=2,layers=2; do
    compare "$(($(tr , '*' <<< "${layout//[a-z=]/}")))" "$layout" --method queue:block=1,context=1 \
      --model models/pocket --prompt "a red ball" --dtype f32 --num-frames 9 --steps 9 --size 64x64
  done
}

batch() {
  local output=drawn/
  printf '%s\n' "a red ball" "a white ring" "a blue square" > "$folder/prompts"
  compare 2 ulysses=2 --prompt-file "$folder/prompts" --model models/pocket --dtype f32 --num-frames 5 \
    --steps "$steps" --size 64x64
}

# The model draws from text and the first picture.
pictures() {
  "$weft" generate --model models/pocket --prompt "a white ring" --num-frames 1 --size 64x64 --steps 2 --seed 3 \
    --threads 1 -q -o "$folder/face.png" > /dev/null
  local layout
  for layout in cfg=2 layers=2 ulysses=2,cfg=2; do
    compare "$(($(tr , '*' <<< "${layout//[a-z=]/}")))" "$layout" --model tests/golden/pipeline_i2v_a14b/model \
      --image "$folder/face.png" --prompt x --size 64x32 --num-frames 9 --steps 3 --guidance-scale 5
  done
}

speech_files() {
  "$write_speech_model" "$folder/speech" "$folder/talk.wav"
  "$weft" generate --model models/pocket --prompt "a white ring" --num-frames 1 --size 96x64 --steps 2 --seed 3 \
    --threads 1 -q -o "$folder/face.png" > /dev/null
}

speech() {
  speech_files
  local layout
  for layout in cfg=2 layers=2; do
    compare 2 "$layout" --model "$folder/speech" --image "$folder/face.png" \
      --audio "$folder/talk.wav" --prompt talks --size 64x64 --steps 1 --guidance-scale 3
  done
}

# layouts of the first arguments, then --, then flags of stream: all draw what one rank draws.
compare_streams() {
  local layouts=() layout axes
  while [ "$1" != -- ]; do
    layouts+=("$1")
    shift
  done
  shift
  local flags=(stream --dtype f32 "$@") wanted
  wanted=$(hash_of "${flags[@]}")
  for layout in "${layouts[@]}"; do
    axes=${layout%,decode_rank*}
    local ranks=$(($(tr , '*' <<< "${axes//[a-z=]/}") + (${#axes} < ${#layout})))
    expect "stream $layout" "$wanted" "$ranks" "${flags[@]}" --layout "$layout"
  done
}

# A stream takes of each process what is free there, and not what the first one has.
stream_memory() {
  local dry=("$weft" stream --model "$PWD/models/pocket_avatar" --render "$folder/talk.wav" --layout step=2
    --threads 1 --dry-run --json) code=0
  flags_of_others="--memory-limit 4GB" timeout 100 $launch 2 "$each" "${dry[@]}" > "$folder/out"
  flags_of_others="--memory-limit 1MB" timeout 100 $launch 2 "$each" "${dry[@]}" 2> "$folder/err" || code=$?
  if ! grep -q '"available_bytes":2000000000' "$folder/out" || [ $code != 4 ] ||
    ! grep -q '^weft: on device 2 of 2, the job needs .*, 0.48 MiB are available' "$folder/err"; then
    echo "the memory of a stream's second process over $way: code $code" >&2
    cat "$folder/out" "$folder/err" >&2
    exit 1
  fi
  echo "stream on 2 processes over $way: each has its own memory"
}

streams() {
  speech_files
  stream_memory
  compare_streams step=2 layers=2 ulysses=2 step=1,decode_rank=1 step=2,decode_rank=2 step=2,ulysses=2 \
    step=2,layers=2 -- --model models/pocket_avatar --render "$folder/talk.wav"
}

# The products of few rows that ulysses has are rounded otherwise; its threads do so, too. The first
# process alone has the picture.
speech-streams() {
  speech_files
  weft="$each $weft"
  local flags=(--model "$folder/speech" --steps 2 --caption talks --image face.png --size 64x64
    --render "$folder/talk.wav")
  compare_streams step=2 layers=2 step=2,decode_rank=2 -- "${flags[@]}"
  flags=(stream --dtype f32 "${flags[@]}" --layout ulysses=2)
  expect "stream ulysses=2" "$(hash_of "${flags[@]}" --ranks 2)" 2 "${flags[@]}"
}

for part in "$@"; do "$part"; done
