#!/bin/bash
# keep.sh FOLDER: applies the event on its input to FOLDER/<batch id>.
set -euo pipefail
event=$(cat)
fields='import json, sys; e = json.load(sys.stdin); print(e["subject"], e["sequence"], e["type"])'
read -r batch sequence type < <(python3 -c "$fields" <<< "$event")
read -r known was < <(cat "$1/$batch" 2> /dev/null || echo "0 none")
# Repeats and latecomers change nothing: the highest sequence holds, and a final state is final.
final='^batch.(completed|failed|expired|cancelled)$'
if [[ $sequence > $known && ! $was =~ $final ]]; then
  printf '%s %s\n%s\n' "$sequence" "$type" "$event" > "$1/.$batch"
  sync "$1/.$batch"
  mv "$1/.$batch" "$1/$batch"
fi
echo "$sequence $type $batch"
