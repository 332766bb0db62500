#!/bin/sh
# Prints the Python to run the project with: one that can create a virtual environment, the first that was built with
# optimisations, which makes the service about a fifth faster, else the first. If $PYTHON is set, only it is tried. Standard
# error says what was taken.
set -u

# Prints version, whether that is new enough, whether it makes environments, and how it was built. Distributions build their
# Python, whose prefix is /usr, with optimisations and do not always record it.
ask='import sys, sysconfig
try:
    import ensurepip, venv
    makes = "makes"
except ImportError:
    makes = "lacks"
recorded = sysconfig.get_config_var("CONFIG_ARGS") or ""
fast = "--enable-optimizations" in recorded or sysconfig.get_config_var("prefix") == "/usr"
print("%d.%d" % sys.version_info[:2], "new" if sys.version_info >= (3, 11) else "old", makes, "optimised" if fast else "plain")'

tried=""
plain=""
for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3.14 python3 python /usr/bin/python3}; do
    path=$(command -v "$candidate" 2>/dev/null) || continue
    # A version manager's shim may exist for a version that is not installed, so it must be run to find out.
    answer=$("$path" -c "$ask" 2>/dev/null) || continue
    version=${answer%% *}
    case $answer in
        *" new makes optimised")
            echo "taking $path: Python $version, built with optimisations" >&2
            echo "$path"
            exit 0
            ;;
        *" new makes plain") plain=${plain:-$path $version} ;;
        *" new lacks "*) tried="$tried $candidate is $version but lacks venv or ensurepip (Debian, Ubuntu: apt-get install python$version-venv);" ;;
        *) tried="$tried $candidate is $version;" ;;
    esac
done
if [ -n "$plain" ]; then
    echo "taking ${plain% *}: Python ${plain##* }, built without optimisations; one with --enable-optimizations is faster" >&2
    echo "${plain% *}"
    exit 0
fi
{
    echo "No usable Python >= 3.11 found.${tried:+ Tried:$tried}"
    echo "Install Python 3.11 or later with its venv module, or name one: make PYTHON=/path/to/python3 ..."
} >&2
exit 1
