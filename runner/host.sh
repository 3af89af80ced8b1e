# shellcheck shell=bash
# What the scripts of this folder share: where things are, whom they trust, how a host is drained.
#
# Nothing here listens to the environment: places follow from where the scripts lie, so a copy
# elsewhere finds the configuration beside itself, and every file that decides belongs to root.

here=$(dirname -- "$(realpath -- "${BASH_SOURCE[0]}")")
prefix=${here%/usr/local/libexec/fla-bot}
[[ $prefix != "$here" ]] || { echo "fla-bot: $here is not an installed folder" >&2; exit 3; }
etc=$prefix/etc/fla-bot
state=$prefix/var/lib/fla-bot
marker=$state/drained
declare -A conf

readonly KEYS=" repository branch workflow job work lane_user worker_uids devices read_only memory
 baseline_mib settle_s exclusive lock_wait_s limit_s environment "
readonly NEEDED="repository branch workflow job work"

refuse() {
  printf 'fla-bot: refused: %s\n' "$*" >&2
  exit 1
}

infra() {
  printf 'fla-bot: infra: %s\n' "$*" >&2
  exit 3
}

# Only root may have written it, or anything above it.
trusted() {
  local path=$1 owner mode
  while :; do
    [[ ! -L $path && -e $path ]] || return 1
    read -r owner mode < <(stat --format '%u %a' -- "$path")
    [[ $owner == 0 ]] && ((!(8#$mode & 8#022))) || return 1
    [[ $path != "$prefix" && $path != / ]] || return 0
    path=$(dirname -- "$path")
  done
}

# Lines `key = value`; whatever is not understood refuses the whole file.
load_conf() {
  local file=$etc/$1.conf line key
  trusted "$file" || infra "$file: not there, or others than root may change it"
  while IFS= read -r line || [[ -n $line ]]; do
    [[ -n $line && $line != '#'* ]] || continue
    [[ $line =~ ^([a-z_]+)\ =\ ([A-Za-z0-9_./:=@+,\ -]+)$ ]] || infra "$file: not understood: $line"
    key=${BASH_REMATCH[1]}
    [[ $KEYS == *[[:space:]]"$key"[[:space:]]* ]] || infra "$file: no key $key"
    conf[$key]=${BASH_REMATCH[2]}
  done <"$file"
  for key in $NEEDED; do
    [[ -n ${conf[$key]:-} ]] || infra "$file: $key is missing"
  done
}

refuse_if_drained() {
  [[ ! -e $marker ]] || infra "this host is drained: $(head --bytes 300 -- "$marker"); a person must look and remove $marker"
}
