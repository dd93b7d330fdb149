#!/usr/bin/env bash
# Measures how well the pocket model draws: it takes prompts of trained and held-out combinations in
# turn and reads the clips back from the MP4s.
# usage: tests/bench/pocket.sh [CLIPS] [SEED] [FOLDER]; needs the default build.
set -euo pipefail
cd "$(dirname "$0")/../.."
clips=${1:-40} seed=${2:-1} folder=${3:-outputs/pocket-bench}
score=build/tests/support/clip_score
mkdir -p "$folder"
rm -f "$folder"/*.mp4 "$folder"/*.json
$score --prompts "$clips" "$seed" >"$folder/prompts.txt"
build/weft generate --model models/pocket --prompt-file "$folder/prompts.txt" --seed "$seed" \
  --output "$folder/" --quiet >"$folder/results.txt"
awk '{s += $3} END {printf "%d clips, %.2f s each\n", NR, s / NR}' "$folder/results.txt"
$score "$folder"/*.mp4
