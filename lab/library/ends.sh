# Running commands at the two ends: `host`, a process in the run's network namespace, and `guest` (and `guest2`).
#
# Sourced by lab/run. Everything that is run is written down in the scenario's log, with its output and how it ended.
# shellcheck shell=bash

# Runs a command at an end and waits for it: its standard output is ours, its exit status too (124 after COMMAND_SECONDS,
# 125 when the guest has gone). Its standard error goes to the log.
on() { # END COMMAND...
  local label=on-$BASHPID-$EPOCHREALTIME status=0
  start "$1" "$label" "${@:2}"
  finish "$label" "${COMMAND_SECONDS:-60}" || status=$?
  output "$label"
  return "$status"
}

# Starts a command at an end and goes on. LABEL names it for the functions below; each is used once in a scenario.
start() { # END LABEL COMMAND...
  local end=$1 label=$2 folder
  shift 2
  if [ -e "$scratch/$label.end" ]; then
    echo "start: the label $label has been used before in this scenario" >&2
    return 2
  fi
  echo "$end" >"$scratch/$label.end"
  printf '%q ' "$@" >"$scratch/$label.command"
  echo "$EPOCHREALTIME" >"$scratch/$label.started"
  if [ "$end" = host ]; then
    (
      # `ip netns exec` becomes the command: this is its process number.
      ${enter[@]+"${enter[@]}"} "$@" >"$scratch/$label.output" 2>"$scratch/$label.errors" </dev/null &
      echo $! >"$scratch/$label.pid"
      status=0
      wait $! || status=$?
      echo "$status" >"$scratch/$label.status"
    ) 2>/dev/null &
  else
    folder=$run/$end/shared
    local number kind
    number=$(send_command "$end" "$@")
    for kind in pid output errors status; do
      ln -s "$folder/$number.$kind" "$scratch/$label.$kind"
    done
  fi
}

# Waits for a started command to end: its exit status, or 124 after SECONDS, when it is killed, or 125 when its guest has gone.
finish() { # LABEL SECONDS
  local label=$1 end status=0 started=$SECONDS deadline=$((SECONDS + $2))
  end=$(<"$scratch/$label.end")
  if ! [ -s "$scratch/$label.finished" ]; then
    until [ -s "$scratch/$label.status" ]; do
      if [ "$end" != host ] && ! guest_is_alive "$end"; then
        status=125
        break
      fi
      if [ "$SECONDS" -ge "$deadline" ]; then
        status=124
        send_signal "$label" KILL
        break
      fi
      [ $((SECONDS - started)) -lt 3 ] || progress "$scenario: $label… $((SECONDS - started)) s"
      pause 0.03
    done
    [ "$status" -ne 0 ] || status=$(<"$scratch/$label.status")
    echo "$status" >"$scratch/$label.finished"
    write_down "$label" "$status"
    # What went wrong, for the caller; all of it is in the log.
    case $status in
      0) ;;
      124) echo "not done after $2 s, and killed" >&2 ;;
      125) echo "the $end has gone" >&2 ;;
      *)
        errors "$label" | tail -n 3 >&2
        [ "$status" -le 128 ] || echo "ended by signal $(kill -l "$status")" >&2
        ;;
    esac
  fi
  return "$(<"$scratch/$label.finished")"
}

# What a command has written so far.
output() { cat "$scratch/$1.output" 2>/dev/null || true; } # LABEL
errors() { cat "$scratch/$1.errors" 2>/dev/null || true; } # LABEL

# Has been started, and has not ended: in a guest it may take a moment until there is a process.
is_running() { # LABEL
  ! [ -s "$scratch/$1.status" ] && ! [ -s "$scratch/$1.finished" ]
}

# A signal to one process, by its number, at the end where it runs.
send_signal() { # LABEL SIGNAL
  local end
  end=$(<"$scratch/$1.end")
  for ((tries = 0; tries < 100; tries++)); do
    [ ! -s "$scratch/$1.pid" ] || break
    pause 0.05
  done
  [ -s "$scratch/$1.pid" ] || return 1
  if [ "$end" = host ]; then
    kill -s "$2" "$(<"$scratch/$1.pid")" 2>/dev/null || true
  else
    send_command "$end" kill -s "$2" "$(<"$scratch/$1.pid")" >/dev/null
  fi
}

# Until somebody listens on a TCP port there.
await_listener() { # END PORT [SECONDS]
  COMMAND_SECONDS=$((${3:-30} + 30)) on "$1" "$here/guest/await-listener" "$2" "${3:-30}"
}

write_down() { # LABEL STATUS
  local seconds
  seconds=$(awk -v from="$(<"$scratch/$1.started")" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }')
  {
    echo "--- $(<"$scratch/$1.end")\$ $(<"$scratch/$1.command")"
    output "$1" | head -c 100000
    errors "$1" | head -c 100000 | sed 's/^/! /'
    echo "--- exit $2 after $seconds s"
  } >>"$log"
}

# What was still running when time was up.
write_down_running() {
  local path label
  for path in "$scratch"/*.end; do
    [ -e "$path" ] || continue
    label=${path##*/} label=${label%.end}
    if is_running "$label"; then write_down "$label" none; fi
  done
}
