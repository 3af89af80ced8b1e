#!/bin/bash
# ACTIONS_RUNNER_HOOK_JOB_STARTED: lets one job of one workflow run here, and starts it clean.
#
# Runs as the runner's user before the first step; its exit status ends any other job. A workflow of
# any branch may ask for this host by label: this is the host's own word on it, beside the rule of
# the runner group.
set -euo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
unset BASH_ENV ENV CDPATH GLOBIGNORE LD_PRELOAD LD_LIBRARY_PATH
# shellcheck source-path=SCRIPTDIR source=host.sh
source "$(dirname -- "$(realpath -- "${BASH_SOURCE[0]}")")/host.sh"

user=$(id --user --name)
load_conf "$user"
refuse_if_drained

must_be() {
  local name=$1 wanted=$2 given=${!1:-}
  [[ $given == "$wanted" ]] || refuse "$name is '${given//[^A-Za-z0-9_.\/@-]/?}', this host takes only '$wanted'"
}
must_be GITHUB_REPOSITORY "${conf[repository]}"
must_be GITHUB_EVENT_NAME workflow_dispatch
must_be GITHUB_REF "refs/heads/${conf[branch]}"
must_be GITHUB_WORKFLOW_REF "${conf[repository]}/${conf[workflow]}@refs/heads/${conf[branch]}"
must_be GITHUB_RUN_ATTEMPT 1
must_be GITHUB_JOB "${conf[job]}"
trusted "$here/fla-bot-lane" || infra "$here/fla-bot-lane: not there, or others than root may change it"

# What an earlier job could have left for this one. The folder itself is the runner's.
wipe() {
  [[ -d $1 && ! -L $1 ]] || return 0
  find "$1" -mindepth 1 -delete || infra "leftovers in $1 cannot be removed"
}
work=$(realpath -- "${GITHUB_WORKSPACE:-}") || refuse "no workspace"
[[ $work == "$(realpath -- "${conf[work]}")"/*/* ]] || refuse "the workspace is not below ${conf[work]}"
wipe "$work"
wipe "$state/$user/in"
home=$(getent passwd "$user" | cut --delimiter : --fields 6)
for name in .cache .config .local .triton .nv .ascend .npm atc_data kernel_meta; do
  wipe "$home/$name"
done
