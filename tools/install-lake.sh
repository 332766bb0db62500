#!/bin/sh
# Makes an environment of the tests of the lake: Spark and one format of tables, with the newest Spark that it is made
# for. $1 is where, $2 delta or iceberg; a stamp there says that it is whole. Spark brings Ivy, which fetches the format
# from Maven's central repository. Exit status 1 if it cannot be had.
set -u
home=$1
# organisation:name:version:sha256
case $2 in
delta)
    jars="io.delta:delta-spark_2.13:4.4.0:27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead
    io.delta:delta-storage:4.4.0:c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"
    ;;
iceberg)
    jars="org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0:3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82"
    ;;
*) echo "$0 DIR delta|iceberg" >&2 && exit 2 ;;
esac
here=$(dirname "$0")
lock="$here/../locks/$2.lock"
stamp="$home/.$( (cat "$lock" && echo "$jars") | sha256sum | cut -c1-16)"
[ -e "$stamp" ] && exit 0
java_home=$("$here/find-java.sh") || exit 1
echo "installing what the tests of the lake need: $2 and its Spark" >&2
python=$("$here/find-python.sh") && "$python" -m venv --clear "$home" || exit 1
"$here/pip-install.sh" "$home/bin/python" --require-hashes --requirement "$lock" >&2 || exit 1
ivy=$(echo "$home"/lib/python*/site-packages/pyspark/jars/ivy-*.jar)
for jar in $jars; do
    IFS=: read -r organisation name version digest <<END
$jar
END
    "$java_home/bin/java" -jar "$ivy" -error -notransitive -cache "$home/ivy" -dependency "$organisation" "$name" \
        "$version" -confs default -retrieve "$home/jars/[artifact]-[revision].[ext]" >/dev/null || exit 1
    echo "$digest  $home/jars/$name-$version.jar" | sha256sum --check --quiet >&2 || exit 1
done
touch "$stamp"
