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

# One exchange of `longhaul interop`, a check for each line of its report and one for the server's end.
interop_exchange() { # CLIENT-END FAMILY CONNECTION MTU [OPTION]...
  local client=$1 family=$2 connection=$3 mtu=$4 server name status=0
  shift 4
  server=$(other_end "$client")
  name=$client-client-ipv$family-mtu$mtu
  start "$server" "$name-server" "$LONGHAUL" interop server -d "$(device "$server" "$family")" --once
  if ! await_listener "$server" 18516; then
    finish "$name-server" 1 || true
    failed "$name/server" "it does not listen"
    return
  fi
  start "$client" "$name-client" "$LONGHAUL" interop client "$(address "$server" "$family")" \
    -d "$(device "$client" "$family")" -c "$connection" -m "$mtu" --json "$@"
  finish "$name-client" "${EXCHANGE_SECONDS:-120}" || status=$?
  check_report "$name" "$scratch/$name-client.output" "$status"
  check "$name/server" finish "$name-server" 30
}

# Each end as client, both families, both path MTUs.
interop_matrix() { # CONNECTION [OPTION]...
  local connection=$1 family mtu client
  shift
  for family in 4 6; do
    for mtu in 1024 4096; do
      for client in host guest; do
        interop_exchange "$client" "$family" "$connection" "$mtu" "$@"
      done
    done
  done
}
