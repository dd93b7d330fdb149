#!/usr/bin/env bash
# Tells whether this build draws the frames of another commit's build on this machine, bit for bit: small jobs of every
# method and format, whole ones and ones that are stopped and go on (tests/signature.py lists them).
#   tests/signature.sh BASE    builds BASE in build-signature/, once, and compares build/weft with it
# Ends with 1 where a frame hash differs or a job has none. Needs `tests/ci.sh build` before.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 1 ] || { sed -n '2,5p' "$0" >&2; exit 2; }
base=$(git rev-parse --verify "$1^{commit}")
tree=$PWD/build-signature/$base
if [ ! -x "$tree/build/weft" ]; then
  [ -d "$tree" ] || git clone --quiet --shared --no-checkout . "$tree"
  git -C "$tree" checkout --quiet "$base"
  (cd "$tree" && export CCACHE_BASEDIR=$tree CCACHE_NOHASHDIR=1 &&
    cmake --preset default -DCMAKE_UNITY_BUILD=ON >/dev/null && cmake --build build --target weft)
fi
python3 tests/signature.py "$tree/build/weft" build/weft build/tests/support/write_speech_model
