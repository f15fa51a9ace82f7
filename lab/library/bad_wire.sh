# A bad wire between the ends, made by the guest's kernel and not by code of ours: netem on its NIC for what it sends, and netem on an
# intermediate device (ifb) for what it receives, which is steered there before anything else sees it.
#
# Sourced by lab/run.
# shellcheck shell=bash

make_wire_bad() { # NETEM-OPTION...
  on guest bash -ec '
    for module in sch_netem ifb act_mirred cls_matchall sch_ingress; do modprobe "$module"; done
    ip link show ifb0 >/dev/null 2>&1 || ip link add ifb0 type ifb
    ip link set ifb0 mtu "$(</sys/class/net/$NIC/mtu)" up
    tc qdisc add dev "$NIC" root "$@"
    tc qdisc add dev "$NIC" ingress
    tc filter add dev "$NIC" parent ffff: matchall action mirred egress redirect dev ifb0
    tc qdisc add dev ifb0 root "$@"' - netem limit 10000 "$@"
}

# Without this, what passes over the bad wire would pass on a good one too.
check_wire_was_bad() {
  local qdiscs direction name figures dropped sent
  qdiscs=$(on guest tc -s -j qdisc show)
  for direction in 'from-guest:(.dev != "ifb0")' 'to-guest:(.dev == "ifb0")'; do
    name=${direction%%:*}
    figures=$(jq -r ".[] | select(.kind == \"netem\" and ${direction#*:}) | \"\(.drops) \(.packets)\"" <<<"$qdiscs")
    read -r dropped sent <<<"${figures:-0 0}"
    if [ "$dropped" -gt 0 ]; then
      passed "packets-were-lost-$name" "$dropped lost, $sent passed"
    else
      failed "packets-were-lost-$name" "none of $sent: the checks over the bad wire prove nothing"
    fi
  done
}

# The next scenario has a good one again.
make_wire_good() {
  on guest bash -ec 'tc qdisc del dev "$NIC" root; tc qdisc del dev "$NIC" ingress; ip link del ifb0'
}
