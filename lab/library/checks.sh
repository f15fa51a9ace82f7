# Checks: one line each, `passed NAME` or `failed NAME: WHY`, counted at the end of the run.
#
# Sourced by lab/run. A name is SCENARIO/CHECK; the scenario's name is put in front here.
# shellcheck shell=bash

passed() { # CHECK [REMARK]
  end_progress
  echo "passed $scenario/$1${2:+ ($2)}" | tee -a "$results" "$log"
}

failed() { # CHECK WHY
  end_progress
  # One line, whatever the reason looks like.
  echo "failed $scenario/$1: ${2//$'\n'/; }" | tee -a "$results" "$log"
}

# Passes when the command exits 0; its last line of output, on whichever stream, is the remark or the reason.
check() { # CHECK COMMAND...
  local name=$1 said status=0
  shift
  said=$("$@" 2>&1) || status=$?
  if [ "$status" -eq 0 ]; then
    passed "$name"
  else
    printf "%s\n" "--- $*" "$said" "--- exit $status" >>"$log"
    failed "$name" "exit $status: $(tail -n 1 <<<"$said")"
  fi
}

# The checks that a `longhaul` command with --json reports, each as one of ours. No report is a failed check.
check_report() { # PREFIX FILE STATUS
  local name good why
  if ! json_holds "$2" '.schema == 1 and (.checks | length > 0)'; then
    failed "$1" "exit $3, and no report with checks on standard output"
    return
  fi
  while IFS=$'\t' read -r good name why; do
    if [ "$good" = true ]; then passed "$1/$name" "$why"; else failed "$1/$name" "$why"; fi
  done < <(jq -r '.checks[] | [(.passed | tostring), .name, (if .passed then
    (if .operations then "\(.operations) operations" else "" end) else (.message // "no reason given") end)] | @tsv' "$2")
  if [ "$3" -ne 0 ] && json_holds "$2" 'all(.checks[]; .passed)'; then
    failed "$1/exit" "exit $3, although every check in its report has passed"
  fi
}

# Is it one JSON value, of which the filter is true? Without -s, jq 1.6 finds nothing wrong with an empty file.
json_holds() { # FILE JQ-FILTER
  jq -es "length == 1 and (.[0] | $2)" "$1" >/dev/null 2>&1
}
