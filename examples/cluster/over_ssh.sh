#!/usr/bin/env bash
# dpscope on hosts that ssh reaches, with the same folder and the same environment on each. The first one leads.
#   ./over_ssh.sh "host0 host1" run --devices 1,8,2x8 --out /shared/runs/big
# PORT is one on the first host that the others reach. Ctrl-C here ends all of them.
set -euo pipefail
read -ra hosts <<<"$1"
shift
meeting="--nodes ${#hosts[@]} --rendezvous ${hosts[0]}:${PORT:-29500}"
started=()
trap 'kill "${started[@]}" 2>/dev/null || true' INT TERM
for index in "${!hosts[@]}"; do
  # -tt: what runs there ends when this ends
  ssh -tt "${hosts[$index]}" "cd $(printf %q "$PWD") && dpscope $(printf '%q ' "$@") $meeting --node-rank $index" </dev/null &
  started+=($!)
done
status=0
for process in "${started[@]}"; do
  wait "$process" || status=$?
done
exit "$status"
