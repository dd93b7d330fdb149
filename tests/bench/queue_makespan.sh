#!/usr/bin/env bash
# Compares the planned and the real time of the queue on two ranks, in interleaved pairs. Run by hand
# on a quiet machine. usage: queue_makespan.sh WEFT [PAIRS]
set -eu
weft=$1 pairs=${2:-5} folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
export GOMP_SPINCOUNT=2000 OMP_NUM_THREADS=1
job="--model models/pocket --num-frames 129 --steps 12 --dtype f32 --ranks 2 --layout layers=2 --threads 1
  --method queue:block=8,context=4"
for i in $(seq "$pairs"); do
  "$weft" plan $job --json > "$folder/plan_$i.json"
  "$weft" generate $job --prompt "a big red ball" --seed 0 --json --progress none --overwrite \
    -o "$folder/clip.mp4" > "$folder/run_$i.json" 2> /dev/null
done
python3 - "$folder" "$pairs" << 'END'
import json, statistics, sys
folder, pairs = sys.argv[1], int(sys.argv[2])
rows = []
for i in range(1, pairs + 1):
    plan = json.load(open(f"{folder}/plan_{i}.json"))
    run = json.load(open(f"{folder}/run_{i}.json"))
    real = sum(run["stages"].get(name, 0) for name in ("encode_text", "denoise", "decode"))
    rows.append((plan["seconds"] / real, plan["seconds"], real, plan["stages"], run["stages"]))
    print(f"planned {plan['seconds']:.3f} s, real {real:.3f} s, ratio {rows[-1][0]:.3f}", plan["stages"], run["stages"])
print("medians: planned %.3f s, real %.3f s, ratio %.3f" % tuple(
    statistics.median(row[k] for row in rows) for k in (1, 2, 0)))
END
