#!/usr/bin/env bash
# Passes the tests from nothing: install, lint, build, run every test.
set -euo pipefail
cd "$(dirname "$0")/.."
bash apps/setup.sh tests
bash tests/ci.sh lint
bash tests/ci.sh build
bash tests/ci.sh test
