#!/usr/bin/env bash
# Does by hand what a builder and a runtime of containers do with apps/deploy/Containerfile, where neither is at hand:
# runs the lines of each stage in a bare Debian root of its own, then starts the server in the second one, as the
# image's user on a read-only root, asks its health, draws a job and ends it. Needs root.
# usage: tests/image.sh [FOLDER]   FOLDER receives the package of weft
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-$(mktemp -d)}
stage() { python3 tests/containerfile.py "$@"; }
context=/root/context

# The build sees what COPY gives it, and nothing else of the tree.
mapfile -t build < <(stage 0 $context)
tests/bare_root.sh --out "$folder" "mv /root/weft $context && mkdir /root/weft" "${build[@]}" \
  "mkdir outputs && cp build/weft_*.deb outputs"

mapfile -t made < <(stage 1 $context)
start=$(stage --start) health=$(stage --health)
cat > "$folder/serve.sh" <<END
set -euo pipefail
mkdir -p /run/secrets
od -An -N 24 -tx1 /dev/urandom | tr -d ' \n' > /run/secrets/weft-api-key
chmod 0444 /run/secrets/weft-api-key
for folder in /tmp /data; do mount -t tmpfs -o mode=1777 none \$folder; done
mount -o remount,bind,ro /
[ ! -w /usr ] || { echo "the root can be written"; exit 1; }
( $start ) > /tmp/address 2> /tmp/log &
trap 'cat /tmp/log' EXIT
timeout 300 bash -c 'until [ -s /tmp/address ]; do sleep 0.2; done'
( $health )
[ "\$(stat -c %u /proc/\$!)" = 10001 ]
ask() { curl -fsS -H "X-Api-Key: \$(cat /run/secrets/weft-api-key)" "\$@"; }
ask http://127.0.0.1:8188/health/ready
ask -H 'Prefer: wait=120' -d '{"prompt": "a big red ball, moving left", "num_frames": 5, "steps": 4}' \
  http://127.0.0.1:8188/v1/jobs | grep -q '"state":"completed"'
kill -TERM \$!
wait \$!
cd /data
weft generate --model pocket --prompt 'a big red ball, moving left' -o deb.mp4
test -f /usr/lib/systemd/system/weft.service
ls -l
END
tests/bare_root.sh --put "$(echo "$folder"/weft_*.deb)" --put "$folder/serve.sh" \
  "apt-get update -qq && apt-get install -y -qq mount >/dev/null" "mkdir -p $context/outputs && cp /root/weft_*.deb $context/outputs" "${made[@]}" "bash /root/serve.sh"
rm "$folder/serve.sh"
echo "image: built and served"
