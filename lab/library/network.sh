# The wire: a network namespace of this run's own, with a bridge that is the host's NIC, and a tap device for each guest.
#
# Sourced by lab/run. Addresses are the same in every run: only the namespace sees them.
# shellcheck shell=bash

# Room for a path MTU of 4096 and its headers.
readonly link_mtu=4500
readonly prefix4=24 prefix6=64

# The address of an end: host, guest or guest2.
address() { # END 4|6
  local last
  case $1 in
    host) last=1 ;;
    guest) last=2 ;;
    guest2) last=3 ;;
    *) echo "address: no such end: $1 (host, guest, guest2)" >&2; return 2 ;;
  esac
  case $2 in
    4) echo "192.0.2.$last" ;;
    6) echo "fd00:4791::$last" ;;
    *) echo "address: family $2 (4 or 6)" >&2; return 2 ;;
  esac
}

# Where the host's end and all guests of this run live. The name says whose it is: see remove_abandoned_namespaces.
make_network() {
  ip netns add "$namespace"
  ip -n "$namespace" -batch - <<NETWORK
link set lo up
link add br0 type bridge
link set br0 mtu $link_mtu up
addr add $(address host 4)/$prefix4 dev br0
addr add $(address host 6)/$prefix6 dev br0 nodad
NETWORK
}

# A namespace ends only with its last process; all that run in ours were started by this run.
remove_network() { # NAMESPACE
  local process
  [ -e "/run/netns/$1" ] || return 0
  # Twice: a process that has just been started may still be entering it.
  for _ in 1 2; do
    for process in $(ip netns pids "$1" 2>/dev/null); do
      kill -KILL "$process" 2>/dev/null || true
    done
    sleep 0.1
  done
  ip netns delete "$1" 2>/dev/null || true
}

# What runs left behind that could not clean up, together with all that guarded them: their process is gone.
remove_abandoned_namespaces() {
  local path name
  for path in /run/netns/longhaul-lab-*; do
    [ -e "$path" ] || continue
    name=${path##*/}
    # Process numbers come again: one with our own name is not ours either, yet.
    if [ "$name" = "$namespace" ] || ! [ -e "/proc/${name#longhaul-lab-}" ]; then
      echo "removing $name, which an earlier run left behind" >&2
      remove_network "$name"
    fi
  done
}

# Each packet as the guest's NIC gets it and sends it, beginnings only: a trace to read, not the contents.
start_capture() { # FILE
  ip netns exec "$namespace" dumpcap -q -i tap1 -f 'udp port 4791' -s 128 -a filesize:100000 -w "$1" \
    >"$1.log" 2>&1 </dev/null &
  capture=$!
}

stop_capture() {
  [ -n "${capture:-}" ] || return 0
  kill -INT "$capture" 2>/dev/null || true
  wait "$capture" 2>/dev/null || true
  capture=''
}
