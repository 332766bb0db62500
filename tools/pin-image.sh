#!/bin/sh
# Write the digests that the registry has for the base images into the Dockerfile: tools/pin-image.sh [DOCKERFILE]
#
# FROM python:3.11-slim-bookworm[@…] becomes FROM python:3.11-slim-bookworm@sha256:…, so a build takes these bytes or none.
# Needs docker with buildx, and the registry. Changes nothing if one image has no digest.
set -eu
file=${1:-deploy/container/Dockerfile}
pinned=$(mktemp)
trap 'rm -f "$pinned"' EXIT
cp "$file" "$pinned"
for image in $(sed -n 's/^FROM \([^ ]*\).*/\1/p' "$file" | sed 's/@.*//' | sort -u); do
    digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$image")
    if ! printf '%s\n' "$digest" | grep -Eqx 'sha256:[0-9a-f]{64}'; then
        echo "$image: the registry gave no digest: $digest" >&2
        exit 1
    fi
    sed -i "s|^FROM $image\(@[^ ]*\)\{0,1\}\( .*\)\{0,1\}\$|FROM $image@$digest\2|" "$pinned"
    echo "$image@$digest"
done
cat "$pinned" > "$file"
