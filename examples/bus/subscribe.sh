#!/bin/bash
# subscribe.sh FOLDER: keeps the newest state of each batch of the tenant in FOLDER/<batch id>.
# Needs amqp-consume of Debian's amqp-tools, and rabbitmqadmin for the binding.
set -euo pipefail
source "$(dirname "$0")/connection.sh"
queue=sub.$tenant.main # our own, and it stays while we are away
admin declare binding source=batch.events destination="$queue" routing_key="batch.*.$tenant.*"
# It acks an event when keep.sh, which reads the event, has ended well.
amqp-consume --server="$host" --port="$port" --authfile="$logins/amqp" --queue="$queue" \
  --prefetch-count=10 "$(dirname "$0")/keep.sh" "$1"
