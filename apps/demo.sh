#!/usr/bin/env bash
# Installs what is missing, builds weft and draws one prompt with the pocket model.
# usage: apps/demo.sh ["a prompt"]; writes outputs/demo.mp4, outputs/demo.gif and outputs/demo.png.
set -euo pipefail
cd "$(dirname "$0")/.."
prompt=${1:-"a big red ball, moving left on a navy background"}
# Clones of the repository share compiled files in the compiler cache, wherever they lie.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

bash apps/setup.sh
# The demo needs no tests, and compiles each folder as one unit; a folder that is configured already keeps its choice.
[ -e build/build.ninja ] || cmake --preset default -DBUILD_TESTING=OFF -DCMAKE_UNITY_BUILD=ON >/dev/null
cmake --build build --target weft
mkdir -p outputs
./build/weft generate --model models/pocket --prompt "$prompt" --seed 7 \
  --output outputs/demo.mp4 --overwrite
# Seven frames side by side, and the clip as a GIF for pages that play no video.
ffmpeg -v error -y -i outputs/demo.mp4 -vf "select='not(mod(n,4))',tile=7x1:padding=4:color=white" -frames:v 1 \
  -update 1 outputs/demo.png
ffmpeg -v error -y -i outputs/demo.mp4 \
  -vf "split[a][b];[a]palettegen[p];[b][p]paletteuse" outputs/demo.gif
echo "demo: outputs/demo.mp4 (clip), outputs/demo.gif, outputs/demo.png (seven frames of it)"
