#!/bin/bash
# Installs the runner side on a host, or again after an update: `install.sh USER CONF [PREFIX]`.
#
# USER is the account that GitHub's runner runs under, CONF its configuration (example.conf).
# PREFIX is for tests; with it, accounts and sudo are left alone.
set -euo pipefail
umask 022
(($# == 2 || $# == 3)) || { echo "usage: install.sh USER CONF [PREFIX]" >&2; exit 2; }
((EUID == 0)) || { echo "install.sh: must be root" >&2; exit 1; }
user=$1 conf=$2 prefix=${3:-}
from=$(dirname -- "$(realpath -- "${BASH_SOURCE[0]}")")
[[ $user =~ ^[a-z_][a-z0-9_-]{0,31}$ ]] || { echo "install.sh: not a user name: $user" >&2; exit 2; }
id -- "$user" >/dev/null || { echo "install.sh: make the user $user first" >&2; exit 1; }

libexec=$prefix/usr/local/libexec/fla-bot
install --directory --mode 755 -- "$prefix/etc/fla-bot" "$libexec" "$prefix/opt/fla-bot" \
  "$prefix/var/lib/fla-bot" "$prefix/var/lib/fla-bot/$user" "$prefix/var/lib/fla-bot/$user/out"
install --directory --mode 700 --owner "$user" -- "$prefix/var/lib/fla-bot/$user/in"
install --mode 644 -- "$from/host.sh" "$libexec/"
install --mode 755 -- "$from/job-started.sh" "$from/fla-bot-lane" "$from/enter-lane" \
  "$from/device-memory" "$libexec/"
install --mode 644 -- "$conf" "$prefix/etc/fla-bot/$user.conf"
[[ -z $prefix ]] || exit 0

getent group fla-bot-runners >/dev/null || groupadd --system fla-bot-runners
usermod --append --groups fla-bot-runners -- "$user"
visudo --check --quiet --file "$from/sudoers"
install --mode 440 -- "$from/sudoers" /etc/sudoers.d/fla-bot
cat <<END
Next, as docs/runners.md says:
  1. install the bot for root: /opt/fla-bot/<commit>, and point /opt/fla-bot/current at it
  2. put ACTIONS_RUNNER_HOOK_JOB_STARTED=$libexec/job-started.sh into the runner's .env, owned by root
  3. restart the runner, and run the check of docs/runners.md
END
