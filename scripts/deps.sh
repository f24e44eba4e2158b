#!/bin/sh
# Installs what is missing to build, test or run Tidewake, on Debian and its kin; elsewhere lists it and stops.
# Usage: scripts/deps.sh build|check|demo|fuzz|mpi   (ENGINE=0 leaves out the engine's libraries)
set -eu
purpose=${1:-build}

# package            how to see that it is there          what for
table='
gcc                  command:gcc                          the compiler
make                 command:make                         the build
pkg-config           command:pkg-config                   finding the libraries
libhdf5-dev          pkg:hdf5-serial|hdf5                 trace files
libzstd-dev          pkg:libzstd                          compression of trace files
libxxhash-dev        pkg:libxxhash                        the checksum of what is compressed
zlib1g-dev           pkg:zlib                             trace files of other writers
libzip-dev           pkg:libzip                           importing .npz
libcjson-dev         pkg:libcjson                         reading JSON
libinih-dev          pkg:inih                             reading the settings of a study
'
[ "${ENGINE:-1}" = 0 ] || table="$table
libdnnl-dev          header:dnnl.h                        matrix products
libpcre2-dev         pkg:libpcre2-8                       splitting text as the tokenizers do
libutf8proc-dev      pkg:libutf8proc                      Unicode normalisation of text, as Qwen's tokenizers do
"
case $purpose in
check) table="$table
check                pkg:check                            the test library
g++                  command:g++                          the CUDA kernels, compiled for the CPU to be tested
hdf5-tools           command:h5dump                       tests that read traces with other software
python3              command:python3                      tests that read traces with other software
python3-h5py         python:h5py                          tests that read traces with other software
gnuplot-nox          command:gnuplot                      figures
" ;;
demo) table="$table
gnuplot-nox          command:gnuplot                      figures
python3              command:python3                      unpacking the model
" ;;
fuzz) table="$table
clang                command:clang                        libFuzzer
libomp-dev           clang:omp.h                          clang's OpenMP
" ;;
mpi) table="$table
libopenmpi-dev       pkg:ompi-c|mpi                       replay over many machines
openmpi-bin          command:mpirun                       replay over many machines
" ;;
esac
if [ "$purpose" != build ] && [ "$purpose" != mpi ] && [ "${ENGINE:-1}" != 0 ]; then table="$table
python3-pip          pythonmodule:pip                     fetching the model
"; fi

present() { # kind:name
    name=${1#*:}
    case $1 in
    command:*) command -v "$name" >/dev/null 2>&1 ;;
    pkg:*) for p in $(echo "$name" | tr '|' ' '); do pkg-config --exists "$p" 2>/dev/null && return 0; done; return 1 ;;
    header:*) printf '#include <%s>\n' "$name" | cc -E -x c - >/dev/null 2>&1 ;;
    clang:*) printf '#include <%s>\n' "$name" | clang -fopenmp -E -x c - >/dev/null 2>&1 ;;
    python:*) /usr/bin/python3 -c "import $name" >/dev/null 2>&1 ;;
    pythonmodule:*) python3 -c "import $name" >/dev/null 2>&1 ;;
    esac
}

missing=
while read -r package how why; do
    [ -n "$package" ] || continue
    present "$how" || { missing="$missing $package"; echo "missing: $package ($why)"; }
done <<EOF
$table
EOF
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "This is not a Debian system: install the equivalents of$missing, then try again." >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then sudo=; elif command -v sudo >/dev/null 2>&1; then sudo=sudo; else
    echo "Not root and no sudo: ask an administrator for 'apt-get install$missing', then try again." >&2
    exit 1
fi
echo "installing with apt-get:$missing"
$sudo apt-get update -qq || echo "apt-get update failed; trying with the lists there are" >&2
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
