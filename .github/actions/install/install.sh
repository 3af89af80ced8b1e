#!/usr/bin/env bash
# Installs fla-bot from a folder into $RUNNER_TEMP/fla-bot: locked wheels only, no build of others.
set -euo pipefail
source=$1 python=$2
venv="$RUNNER_TEMP/fla-bot"
"$python" -I -m venv --clear "$venv"
pip() {
  "$venv/bin/python" -I -m pip --disable-pip-version-check --quiet install --no-cache-dir "$@"
}
pip --require-hashes --only-binary :all: --requirement "$source/constraints/hosted.txt"
pip --no-index --no-deps --no-build-isolation "$source"
