#!/bin/sh
# Builds what users install: the wheels and source distributions of server, Python client, Spark package and checker, and
# the npm package, with a list of the server's parts (CycloneDX) and the digests of all. $1 is the Python that builds, $2
# the directory to fill. The same sources and SOURCE_DATE_EPOCH, by default the time of the last commit, give the same
# bytes, wherever and whenever they are built. Without npm the npm package is left out, which is a failure where CI is set.
set -eu
LC_ALL=C # the order of names is in what is built
export LC_ALL
python=$1 # may be a path from here
mkdir -p "$2"
to=$(cd "$2" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 315619200)} # else 1980
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
mkdir "$work/checkout"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
# A copy: what earlier builds left in the checkout would get into the wheels.
tar -C "$root" -c --exclude=__pycache__ --exclude='*.egg-info' --exclude=node_modules --exclude=build --exclude=dist \
    pyproject.toml setup.py README.md LICENSE gateway shardd supervisor proto topics_server deploy pyspark_topics packages |
    tar -C "$work/checkout" -x
for project in topics-client pyspark-topics topics-history; do cp "$work/checkout/LICENSE" "$work/checkout/packages/$project/"; done
# The folder that two projects have. A source distribution has nothing from outside of its project.
cp -r "$work/checkout/pyspark_topics" "$work/checkout/packages/pyspark-topics/"
sed -i '/^package-dir = /d' "$work/checkout/packages/pyspark-topics/pyproject.toml"
umask 022 # modes are in a wheel: of files of the checkout, and of those that the build makes
chmod -R u=rwX,go=rX "$work"
"$python" -m venv --without-pip "$work/tools"
pip() { "$python" -m pip --python "$work/tools/bin/python" --quiet --disable-pip-version-check "$@"; }
pip install --require-hashes --requirement "$root/deploy/container/build.lock" # one back-end for all, by its digest
rm -f "$to"/*.whl "$to"/*.tar.gz "$to"/*.tgz "$to"/*.cdx.json "$to/SHA256SUMS"
for project in . packages/topics-client packages/pyspark-topics packages/topics-history; do
    # The wheel is built from the source distribution, so this lacks nothing.
    source=$("$work/tools/bin/python" "$root/tools/sdist.py" "$work/checkout/$project" "$to")
    pip wheel --no-deps --no-build-isolation --wheel-dir "$to" "$source"
done
if lacking=$("$root/tools/install-npm.sh" 2>&1); then
    ln -s "$root/packages/topics-client-ts/node_modules" "$work/checkout/packages/topics-client-ts/node_modules"
    (cd "$work/checkout/packages/topics-client-ts" && npm pack --silent --pack-destination "$to" >/dev/null)
else
    echo "the npm package is LEFT OUT. It needs: $(echo "$lacking" | tail -n 1)" >&2
    [ -z "${CI:-}" ]
fi
"$python" "$root/tools/sbom.py" "$to"
(cd "$to" && ls | grep -E "[.](whl|tar[.]gz|tgz|cdx[.]json)\$" | xargs sha256sum >"$work/sums" && mv "$work/sums" SHA256SUMS)
ls "$to"
