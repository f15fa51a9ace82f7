# Guests: booting them, running commands in them, and collecting the results.
#
# Sourced by lab/run. A guest is lab/vm with lab/guest/agent in it; host and guest talk through a shared folder, so that
# whatever a scenario does to the network, commands still get through. $run/guest, $run/guest2 hold all of a guest:
#
#   process       lab/vm's process number
#   console.log   what the guest's console said, from power-on
#   shared/       the folder: numbered commands and their results (see lab/guest/agent)
# shellcheck shell=bash

readonly boot_seconds_max=180
# A guest that outlives its run is nobody's; this is longer than any run may take.
readonly guest_seconds_max=3600

guest_number() { # END
  case $1 in
    guest) echo 1 ;;
    guest2) echo 2 ;;
    *) echo "no such guest: $1 (guest, guest2)" >&2; return 2 ;;
  esac
}

guest_is_alive() { # END
  local process
  [ -s "$run/$1/process" ] || return 1
  process=$(<"$run/$1/process")
  kill -0 "$process" 2>/dev/null && ! [ -e "$run/$1/gone" ]
}

# Starts the machine; await_guest sees it through.
boot_guest() { # END
  local number folder=$run/$1
  number=$(guest_number "$1")
  if [ -d "$folder" ]; then
    # A scenario has brought the one before it down. Its console is evidence.
    mv "$folder" "$folder-until-$(date +%H%M%S)"
  fi
  mkdir -p "$folder/shared"
  ip netns exec "$namespace" ip tuntap add "tap$number" mode tap 2>/dev/null || true
  # A long queue: an emulated guest that gets no processor for a second must not lose what UC and UD do not repeat.
  ip -n "$namespace" link set "tap$number" master br0 mtu "$link_mtu" txqueuelen 50000 up
  in_group run_guest "$1" "$number"
}

# In a process group of its own, until the guest ends.
run_guest() { # END NUMBER
  local folder=$run/$1
  trap - INT TERM HUP EXIT
  TMPDIR=$temporary ip netns exec "$namespace" "$here/vm" --tap "tap$2" --id "$2" \
    --cpus "${LAB_PROCESSORS:-2}" --memory 1024 --out "$folder/shared" --seconds "$guest_seconds_max" -- \
    "$here/guest/agent" "$(address "$1" 4)/$prefix4" "$(address "$1" 6)/$prefix6" "$link_mtu" \
    >"$folder/console.log" 2>&1 &
  echo $! >"$folder/process"
  wait $! || true
  echo >"$folder/gone"
  rm -f "$run/groups/$BASHPID"
}

await_guest() { # END
  local started=$SECONDS shown=-1
  until [ -e "$run/$1/shared/ready" ]; do
    if [ -e "$run/$1/gone" ]; then
      end_progress
      echo "the $1 ended during its boot; its console, whole in $(display_path "$run/$1/console.log"):" >&2
      tail -n 20 "$run/$1/console.log" | indent >&2
      return 1
    fi
    if [ $((SECONDS - started)) -gt "$boot_seconds_max" ]; then
      end_progress
      echo "the $1 was not ready $boot_seconds_max s after power-on; console: $(display_path "$run/$1/console.log")" >&2
      return 1
    fi
    if [ $((SECONDS - started)) -ne "$shown" ]; then
      shown=$((SECONDS - started))
      progress "booting $1… $shown s"
    fi
    pause 0.1
  done
  end_progress
  echo "$1 booted in $((SECONDS - started)) s" >&2
}

# Power off in order, and wait for it; what is left after that is killed with the namespace.
stop_guest() { # END
  guest_is_alive "$1" || return 0
  echo >"$run/$1/shared/power-off"
  for ((tenths = 0; tenths < 100; tenths++)); do
    guest_is_alive "$1" || return 0
    pause 0.1
  done
  kill "$(<"$run/$1/process")" 2>/dev/null || true
}

# Hands a command to the agent and prints its number.
send_command() { # END COMMAND...
  local folder=$run/$1/shared number
  shift
  exec {lock}>"$folder/lock"
  flock "$lock"
  number=1
  [ ! -e "$folder/last" ] || number=$(($(<"$folder/last") + 1))
  { printf 'exec'; printf ' %q' "$@"; echo; } >"$folder/writing"
  mv "$folder/writing" "$folder/$number.command"
  echo "$number" >"$folder/last"
  exec {lock}>&-
  echo "$number"
}

# What the kernel says when something is wrong with it, or with a program that it had to end.
readonly kernel_trouble='BUG: |Oops: |WARNING: CPU|Kernel panic|general protection fault|unable to handle|segfault at|refcount_t:|UBSAN:|Out of memory'
# These come from a host that gave the guest no time; they are shown, and fail nothing.
readonly kernel_starved='soft lockup|rcu.*stall|hung_task|blocked for more than'

# The kernel's complaints on the console behind byte OFFSET.
console_trouble() { # END OFFSET
  tail -c "+$(($2 + 1))" "$run/$1/console.log" | grep -aE "$kernel_trouble" | grep -avE "$kernel_starved" || true
}
