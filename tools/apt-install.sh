#!/bin/sh
# Installs packages of the distribution for $1, each of the rest that can be had, if this is root and there is apt-get.
# It asks nothing. Daemons among the packages are neither started nor enabled. Exit status 1 if one cannot be had.
set -u
for_what=$1
shift
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || exit 1
echo "installing what $for_what need: $*" >&2

# Debian asks this program before it starts a daemon; 101 is no.
policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
fi

units() { systemctl list-unit-files --no-legend --state=enabled --type=service 2>/dev/null | cut -d' ' -f1 | sort; }
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -o Acquire::http::Timeout=20 -o Acquire::Retries=1 -o DPkg::Lock::Timeout=120 -o DPkg::Use-Pty=0 "$@" </dev/null >&2; }
enabled=$(units)
apt update || echo "The lists of packages cannot be fetched: is there a network?" >&2
status=0
for package; do
    apt install -y --no-install-recommends "$package" || { echo "$package cannot be had" >&2 && status=1; }
done
for unit in $(units | grep -vxF "$enabled"); do systemctl disable --quiet "$unit" >&2; done
exit $status
