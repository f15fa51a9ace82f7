# The two ends as a pair: softnic in a process on the host, Soft-RoCE through libibverbs in the guest.
#
# Sourced by lab/run. Scenarios run each exchange with each end as client and as server.
# shellcheck shell=bash

other_end() { # END
  case $1 in
    host) echo guest ;;
    *) echo host ;;
  esac
}

# What `longhaul … -d` takes at an end.
device() { # END FAMILY
  case $1 in
    host) echo "softnic:$(address host "$2")" ;;
    *) echo rxe0 ;;
  esac
}

# A server of `longhaul interop`, which takes one client after the other until it is stopped.
start_interop_server() { # LABEL END FAMILY
  start "$2" "$1" "$LONGHAUL" interop server -d "$(device "$2" "$3")"
  if ! await_listener "$2" 18516; then
    failed "$1" "it does not listen: $(errors "$1" | tail -n 1)"
    return 1
  fi
}

stop_interop_server() { # LABEL
  # One that broke down has taken no other client.
  if is_running "$1"; then passed "$1"; else failed "$1" "it has ended: $(errors "$1" | tail -n 1)"; fi
  send_signal "$1" KILL
  finish "$1" 20 2>/dev/null || true
}

# One run of the client, with a check for each line of its report.
interop_client() { # NAME END FAMILY [OPTION]...
  local name=$1 end=$2 family=$3 status=0
  shift 3
  start "$end" "$name" "$LONGHAUL" interop client "$(address "$(other_end "$end")" "$family")" -d "$(device "$end" "$family")" \
    --json "$@"
  finish "$name" "${CLIENT_SECONDS:-120}" || status=$?
  check_report "$name" "$scratch/$name.output" "$status"
}

# Each end as client, both families, both path MTUs. A brief run has one MTU with each end and family, so that each end still has both.
interop_matrix() { # CONNECTION [OPTION]...
  local connection=$1 client family mtu mtus server
  shift
  for client in host guest; do
    for family in 4 6; do
      server=$(other_end "$client")-server-ipv$family
      start_interop_server "$server" "$(other_end "$client")" "$family" || continue
      case $brief-$client-$family in
        true-host-4 | true-guest-6) mtus=(1024) ;;
        true-*) mtus=(4096) ;;
        *) mtus=(1024 4096) ;;
      esac
      for mtu in "${mtus[@]}"; do
        interop_client "$client-client-ipv$family-mtu$mtu" "$client" "$family" -c "$connection" -m "$mtu" "$@"
      done
      stop_interop_server "$server"
    done
  done
}
