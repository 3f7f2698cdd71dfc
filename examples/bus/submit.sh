#!/bin/bash
# submit.sh BATCH.json [MESSAGE_ID]: publishes a batch by rabbitmqadmin, again until it is confirmed.
set -euo pipefail
source "$(dirname "$0")/connection.sh"
message_id=${2:-$(cat /proc/sys/kernel/random/uuid)} # the same each time: it is the same batch
properties='{"type": "batch.submit.v1", "message_id": "'$message_id'", "user_id": "'$tenant'",
  "content_type": "application/json", "delivery_mode": 2}'
for pause in 1 2 4 8 16 32 0; do # back off: the queue may be full, the broker away
  # The HTTP API publishes with confirms and `mandatory`; what no queue took is no error to it.
  answer=$(admin publish exchange=batch.submit routing_key="submit.v1.$tenant" \
    properties="$properties" < "$1" 2>&1) && [ "$answer" = "Message published" ] &&
    echo "$message_id" && exit 0
  echo "not confirmed, the same again in $pause s: $answer" >&2
  sleep "$pause"
done
echo "gave up; try again with the same message id: $message_id" >&2
exit 1
