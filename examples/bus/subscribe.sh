#!/bin/bash
# subscribe.sh FOLDER: keeps the newest state of each batch of the tenant in FOLDER/<batch id>.
# Needs amqp-consume of Debian's amqp-tools.
set -euo pipefail
source "$(dirname "$0")/connection.sh"
# Our own, also while we are away. The operator has made it and bound it to our events.
queue=sub.$tenant.main
# It acks an event when keep.sh, which reads the event, has ended well.
amqp-consume --server="$host" --port="$port" --authfile="$logins/amqp" --queue="$queue" \
  --prefetch-count=10 "$(dirname "$0")/keep.sh" "$1"
