#!/bin/sh
# Makes the environment of the tests of the lake: the newest Spark that Delta Lake is made for, and Delta Lake. $1 is where;
# a stamp there says that it is whole. Spark brings Ivy, which fetches Delta Lake from Maven's central repository. Exit
# status 1 if it cannot be had.
set -u
home=$1
spark=4.2.1
delta=4.4.0
packages="pyspark==$spark pyarrow>=18 xxhash>=3.5"
jars="delta-spark_2.13:27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead delta-storage:c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"
stamp="$home/.$spark-$delta"
[ -e "$stamp" ] && exit 0
java_home=$("$(dirname "$0")/find-java.sh") || exit 1
echo "installing what the tests of the lake need" >&2
python=$("$(dirname "$0")/find-python.sh") && "$python" -m venv --clear "$home" || exit 1
# shellcheck disable=SC2086
"$home/bin/python" -m pip install --quiet --disable-pip-version-check $packages >&2 || exit 1
ivy=$(echo "$home"/lib/python*/site-packages/pyspark/jars/ivy-*.jar)
for jar in $jars; do
    name=${jar%%:*}
    "$java_home/bin/java" -jar "$ivy" -error -notransitive -cache "$home/ivy" -dependency io.delta "$name" "$delta" \
        -confs default -retrieve "$home/jars/[artifact]-[revision].[ext]" >/dev/null || exit 1
    echo "${jar#*:}  $home/jars/$name-$delta.jar" | sha256sum --check --quiet >&2 || exit 1
done
touch "$stamp"
