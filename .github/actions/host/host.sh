#!/usr/bin/env bash
# Installs the lane wrapper, and the bot with torch and triton, for root on a hosted runner.
set -euo pipefail
source=$(realpath -- "$1") python=$2
venv=/opt/fla-bot/hosted

cat >"$RUNNER_TEMP/host.conf" <<END
repository = $GITHUB_REPOSITORY
branch = $BRANCH
workflow = .github/workflows/fla-bot-executor.yml
job = lane
work = $(dirname -- "$(dirname -- "$GITHUB_WORKSPACE")")
END
sudo bash "$source/runner/install.sh" "$(id --user --name)" "$RUNNER_TEMP/host.conf"

pip() {
  sudo "$venv/bin/python" -I -m pip --disable-pip-version-check --quiet install --no-cache-dir "$@"
}
sudo "$python" -I -m venv --clear "$venv"
pip --require-hashes --only-binary :all: --requirement "$source/constraints/hosted.txt"
pip --only-binary :all: --constraint "$source/constraints/ci.txt" torch triton numpy
pip --no-index --no-deps --no-build-isolation "$source"
sudo ln --symbolic --force --no-dereference "$venv" /opt/fla-bot/current
