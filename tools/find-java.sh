#!/bin/sh
# Prints a JAVA_HOME of Java >= 17, which Spark needs: the one that is there, else the distribution's headless runtime
# where it may be installed (as root, with apt-get); with `look`, only one that is there. Exit status 1 and an explanation
# when there is none.
set -u

# Prints the home of the java command $1 if it is new enough.
home_of() {
    [ -x "$1" ] || return 1
    settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    major=$(printf '%s\n' "$settings" | sed -n 's/^ *java\.specification\.version = //p')
    case $major in '' | *[!0-9]*) return 1 ;; esac # "1.8" and its like are too old anyway
    [ "$major" -ge 17 ] || return 1
    printf '%s\n' "$settings" | sed -n 's/^ *java\.home = //p'
}

find_java() {
    if [ -n "${JAVA_HOME:-}" ]; then home_of "$JAVA_HOME/bin/java" && return 0; fi
    found=$(command -v java 2>/dev/null) && home_of "$found" && return 0
    for candidate in /usr/lib/jvm/*/bin/java; do home_of "$candidate" && return 0; done
    return 1
}

find_java && exit 0
if [ "${1:-}" != look ]; then
    for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
        "$(dirname "$0")/apt-install.sh" Spark "$package" || continue
        find_java && exit 0
    done
fi
echo "No Java >= 17 found, which Spark needs. Install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless;" >&2
echo "Fedora: dnf install java-17-openjdk-headless) or set JAVA_HOME." >&2
exit 1
