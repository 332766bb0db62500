#!/bin/sh
# Installs what tests run besides Python, where it is missing and may be had (as root, with apt-get): systemd-analyze,
# promtool, nginx, caddy, haproxy, iproute2, openssl, curl, venv, chromium, node, npm; with `bench`, the systems that
# `make bench` compares with. It asks nothing, takes no rights that it does not have, and starts nothing, now or when the
# machine starts. Exit status 1 and the names of what is still missing.
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
# shellcheck disable=SC2086
"$(dirname "$0")/apt-install.sh" "the $what" $packages
packages=$(missing)
[ -z "$packages" ] && exit 0
echo "The $what need packages that are not there. Debian, Ubuntu, as root: apt-get install $packages" >&2
exit 1
