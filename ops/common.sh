# shellcheck disable=SC2034  # ANANKE_ROOT is for those who source this
# Sourced by the scripts of this folder: where the tree is, messages, and how much of the machine a build may use.
# shellcheck shell=bash
set -euo pipefail

ANANKE_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly ANANKE_ROOT

say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }
die() {
  printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# Prints the comment block at the head of the calling script: the help text stands once.
print_help() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p;}' "$0"; }

# Runs a command as root: directly, or through sudo. Fails with what to do where neither is possible.
as_root() {
  if [[ $EUID -eq 0 ]]; then
    "$@"
  elif command -v sudo > /dev/null; then
    sudo -- "$@"
  else
    die "installing packages needs root, and there is no sudo here: run ops/setup as root once"
  fi
}

# apt-get without questions, waiting for another apt's lock and retrying downloads.
apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l \
    apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"
}

# CPUs this process may use: the affinity mask, cut by a container's quota.
usable_cpus() {
  local cpus quota period
  cpus=$(nproc)
  if [[ -r /sys/fs/cgroup/cpu.max ]]; then
    read -r quota period < /sys/fs/cgroup/cpu.max
    if [[ $quota =~ ^[0-9]+$ ]] && ((quota / period < cpus)); then
      cpus=$((quota / period))
    fi
  fi
  echo $((cpus > 0 ? cpus : 1))
}

# MiB this process may still take: what the machine has free, cut by a container's limit.
usable_memory_mib() {
  local free_kib limit used
  free_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  if [[ -r /sys/fs/cgroup/memory.max ]]; then
    limit=$(< /sys/fs/cgroup/memory.max)
    if [[ $limit =~ ^[0-9]+$ ]]; then
      used=$(< /sys/fs/cgroup/memory.current)
      ((limit - used >= free_kib * 1024)) || free_kib=$(((limit - used) / 1024))
    fi
  fi
  echo $((free_kib > 0 ? free_kib / 1024 : 0))
}

# Compilers to run at once: one per CPU, and none without memory for its largest source. ANANKE_JOBS overrides.
build_jobs() {
  local jobs by_memory
  if [[ -n ${ANANKE_JOBS:-} ]]; then
    [[ $ANANKE_JOBS =~ ^[1-9][0-9]*$ ]] || die "ANANKE_JOBS='$ANANKE_JOBS' is not a number of jobs: give 1 or more"
    echo "$ANANKE_JOBS"
    return
  fi
  jobs=$(usable_cpus)
  by_memory=$(($(usable_memory_mib) / 1200))
  ((by_memory >= jobs)) || jobs=$by_memory
  echo $((jobs > 0 ? jobs : 1))
}
