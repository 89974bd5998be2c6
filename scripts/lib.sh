# Shared by the scripts beside it: packages, the choice of the build, configure and build. Sourced, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# Threads that wait must not spin: on a machine that does something else as well, spinning costs a factor of ten, and on an
# idle one it gains nothing. libgomp reads this before a program's first line, so the program cannot set it.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

# The builds of different presets share what they have in common: ccache sees paths relative to the build folder.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=true

say() { if [ -t 1 ]; then printf '\033[1m==> %s\033[0m\n' "$*"; else printf '==> %s\n' "$*"; fi; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# What the program is built from, as Debian and Ubuntu call it. oneDNN is not built for every architecture; without it
# the build takes its own, slower product.
build_packages=(g++ cmake ninja-build libyaml-cpp-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libpcre2-dev)
optional_packages=(libdnnl-dev)

installed() { dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

# Are the tools there although no package brought them (a newer cmake of the user's own)?
provided() {
  case $1 in
    cmake) have cmake ;;
    ninja-build) have ninja ;;
    g++) have g++ ;;
    python3) have python3 ;;
    *) return 1 ;;
  esac
}

# ensure_packages NAME...: installs what is missing; uses sudo when not root; without either prints the line to run. What is
# optional is asked for beside it, and done without where it cannot be had.
ensure_packages() {
  local missing=() optional=() name sudo=()
  if ! have apt-get || ! have dpkg-query; then
    say "No apt-get here: these must be installed already: $*"
    return
  fi
  for name in "$@"; do
    installed "$name" || provided "$name" || missing+=("$name")
  done
  for name in "${optional_packages[@]}"; do
    installed "$name" || optional+=("$name")
  done
  [ $((${#missing[@]} + ${#optional[@]})) -gt 0 ] || return 0

  if [ "$(id -u)" != 0 ]; then
    if have sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      sudo=(sudo)
    elif [ ${#missing[@]} = 0 ]; then
      say "Going on without ${optional[*]} (faster matrix products on the CPU): installing needs root"
      return
    else
      printf 'These packages are missing and installing them needs root. Run as root, then start again:\n' >&2
      printf '  apt-get update && apt-get install -y --no-install-recommends %s\n' "${missing[*]} ${optional[*]}" >&2
      exit 1
    fi
  fi
  say "Installing from the distribution, a minute or two: ${missing[*]} ${optional[*]}"
  local install=(${sudo[@]+"${sudo[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends)
  ${sudo[@]+"${sudo[@]}"} apt-get update -qq || say "apt-get update failed; trying with the package lists that are here"
  if [ ${#missing[@]} -gt 0 ]; then
    "${install[@]}" "${missing[@]}" >/dev/null || fail "apt-get install failed; the packages are: ${missing[*]}"
  fi
  for name in ${optional[@]+"${optional[@]}"}; do
    "${install[@]}" "$name" >/dev/null 2>&1 || say "$name cannot be had here: matrix products on the CPU will be slower"
  done
}

find_nvcc() {
  if have nvcc; then command -v nvcc; return; fi
  [ -x /usr/local/cuda/bin/nvcc ] && echo /usr/local/cuda/bin/nvcc
}

# Does a GPU answer, and is the toolkit here to build for it?
gpu_answers() { have nvidia-smi && nvidia-smi -L 2>/dev/null | grep -q GPU && [ -n "$(find_nvcc)" ]; }

# Ninja's [n/m] on one line of a terminal; nothing elsewhere.
progress() {
  local line
  [ -t 1 ] || exec cat >/dev/null
  while IFS= read -r line; do
    [[ ! $line =~ ^\[[0-9]+/[0-9]+\] ]] || printf '\r%s ' "${BASH_REMATCH[0]}"
  done
  printf '\r%20s\r' ''
}

# build PRESET TARGET [cmake -D...]: configures and builds in build/PRESET. Shows how far it is on a terminal, the log only
# when something fails, and the first time the summary of what was found.
build() {
  local preset=$1 target=$2 log="build/$1.log" first=0
  shift 2
  [ -f "build/$preset/build.ninja" ] || first=1
  mkdir -p build
  say "Building ($preset); log: $log$([ $first = 0 ] || echo '; a few minutes the first time')"
  if ! cmake --preset "$preset" "$@" >"$log" 2>&1; then
    grep -A 12 'CMake Error' "$log" >&2 || tail -n 40 "$log" >&2
    fail "configuring failed; the whole log is $log"
  fi
  [ $first = 0 ] || sed -n '/^-- Greyhound/,/^-- $/s/^-- //p' "$log"
  # pipefail: the pipeline fails when the build does.
  if ! cmake --build --preset "$preset" --parallel "$(nproc)" --target "$target" 2>&1 | tee -a "$log" | progress; then
    grep -E -A 8 'error:|FAILED' "$log" | head -n 60 >&2
    fail "the build failed; the whole log is $log"
  fi
}
