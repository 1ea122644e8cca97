#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Three hosts in network namespaces and a switch between them, without Mininet:   sh run.sh router | learning
#
#   h1 --- s1 [ port 1        port 2 ] s2 --- h2        router:   h1 is 10.0.1.2, h2 10.0.2.2, h3 10.0.3.2
#               softswitch    port 3 ] s3 --- h3        learning: 10.0.0.1, 10.0.0.2, 10.0.0.3
#
# It runs in namespaces of its own, as root or, where the system lets users make them, as anybody; nothing is left behind.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
example=${1:-router}
case $example in router | learning) ;; *) echo "usage: sh run.sh router | learning" >&2; exit 2 ;; esac
if [ -z "${EXAMPLE_INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] && how="--net --mount" || how="--user --map-root-user --net --mount"
    EXAMPLE_INSIDE=1 exec unshare $how -- sh "$here/run.sh" "$example"
fi

mount -t tmpfs none /run  # where ip keeps the names of namespaces
ip link set lo up
for n in 1 2 3; do
    ip netns add h$n
    ip link add s$n type veth peer name eth0 address 02:00:00:00:01:0$n netns h$n
    ip link set s$n up
    ip -n h$n link set eth0 up
    if [ $example = router ]; then
        ip -n h$n address add 10.0.$n.2/24 dev eth0
        ip -n h$n route add default via 10.0.$n.1
    else
        ip -n h$n address add 10.0.0.$n/24 dev eth0
    fi
done

log=$(mktemp)
softswitch "$here/$example.p4" -i 1@s1 -i 2@s2 -i 3@s3 >"$log" 2>&1 &
started=$!
trap 'kill $started 2>/dev/null; wait; rm -f "$log"' EXIT
until grep -q ready "$log"; do
    kill -0 $started 2>/dev/null || { cat "$log"; exit 1; }
    sleep 0.05
done

# finsy comes with softswitch: its python has both
python=${PYTHON:-$(sed -n '1s/^#!\(.*python[^ ]*\)$/\1/p' "$(command -v softswitch)")}
python=${python:-python3}
host() { name=$1; shift; nsenter --net=/run/netns/"$name" "$@"; }
if [ $example = router ]; then
    "$python" "$here/router.py" 127.0.0.1:9559
    host h1 ping -c 2 -i 0.2 10.0.2.2
    host h1 ping -c 2 -i 0.2 10.0.3.2
    "$python" "$here/router.py" 127.0.0.1:9559 --counters
else
    "$python" -u "$here/learning.py" 127.0.0.1:9559 >"$log.controller" 2>&1 &
    started="$started $!"
    until grep -q learning "$log.controller"; do sleep 0.05; done
    host h1 ping -c 3 -i 0.2 10.0.0.2
    host h3 ping -c 3 -i 0.2 10.0.0.1
    cat "$log.controller"
    rm -f "$log.controller"
fi
