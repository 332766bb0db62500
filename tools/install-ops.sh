#!/bin/sh
# Installs what tests run besides Python, where it is missing and can be had (apt-get as root): systemd-analyze, promtool,
# nginx, caddy, haproxy, iproute2, openssl, curl, venv, chromium, node, npm; with `bench`, the systems that `make bench` compares with. It installs only where CI is set: elsewhere it names what is missing. Nothing
# is started. Exit status 1 and the names of what is still missing.
set -u

what=${1:-tests}
if [ "$what" = bench ]; then
    wanted="redis-server:redis-server nats-server:nats-server beanstalkd:beanstalkd"
else
    wanted="systemd-analyze:systemd promtool:prometheus nginx:nginx-light caddy:caddy haproxy:haproxy ip:iproute2 openssl:openssl curl:curl chromium:chromium node:nodejs npm:npm"
fi

missing() {
    for pair in $wanted; do
        PATH=$PATH:/usr/sbin command -v "${pair%%:*}" >/dev/null 2>&1 || printf '%s ' "${pair#*:}"
    done
    [ "$what" = bench ] || /usr/bin/python3 -c 'import ensurepip' >/dev/null 2>&1 || printf '%s ' python3-venv
}

packages=$(missing)
[ -z "$packages" ] && exit 0
if [ -n "${CI:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing what $what need: $packages" >&2
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    apt-get update -qq >&2 || true
    for package in $packages; do apt-get install -y -qq --no-install-recommends "$package" >&2 || true; done
fi
packages=$(missing)
[ -z "$packages" ] && exit 0
echo "The $what need packages that are not there. Debian, Ubuntu: apt-get install $packages" >&2
exit 1
